"""Where a request ends is what its head says, whatever else it says: nothing of a body runs as a request."""

from __future__ import annotations

import json

import pytest

from tests.front.test_connections import accepted, feed
from tests.support.serving import BODY as FIELDS
from tests.support.serving import Front, connected, send, until_closed

BODY = json.dumps(FIELDS).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
NEXT = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: next\r\nConnection: close\r\n\r\n"
"""What follows each request below on its connection."""


def post(fields: bytes, body: bytes = BODY, version: bytes = b"1.1") -> bytes:
    line = b"POST /v1/modes/eager/generate HTTP/%s\r\n" % version
    return line + b"Host: localhost\r\nContent-Type: application/json\r\n" + fields + b"\r\n" + body


def get(fields: bytes, body: bytes) -> bytes:
    return b"GET /v1/modes HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n" + body


def chunk(size: bytes = b"%x" % len(BODY), extension: bytes = b"", last: bytes = b"0\r\n\r\n") -> bytes:
    """BODY in one chunk, whose size and extension are written so, and what ends it."""
    return size + extension + b"\r\n" + BODY + b"\r\n" + last


SERVED = {
    "length": post(LENGTH),
    "chunked": post(CHUNKED, chunk()),
    "chunk extension": post(CHUNKED, chunk(extension=b";a=b")),
    "trailer": post(CHUNKED, chunk(last=b"0\r\nX-T: 1\r\n\r\n")),
    "trailer that names a host": post(CHUNKED, chunk(last=b"0\r\nHost: evil\r\nOrigin: http://evil\r\n\r\n")),
    "trailer that offers h2c": post(CHUNKED, chunk(last=b"0\r\n" + OFFER + b"\r\n")),
    "h2c, length": post(OFFER + LENGTH),
    "h2c, chunked": post(OFFER + CHUNKED, chunk()),
    "websocket": post(b"Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n" + LENGTH),
    "a body of a GET": get(b"Content-Length: %d\r\n" % len(NEXT), NEXT),
    "h2c with a GET": get(OFFER, b""),
    "h2c with a body of a GET": get(OFFER + b"Content-Length: %d\r\n" % len(NEXT), NEXT),
    "empty lines before it": b"\r\n\r\n" + post(LENGTH),
}

REFUSED = {
    "chunked and a length": post(CHUNKED + LENGTH, chunk()),
    "another encoding": post(b"Transfer-Encoding: xchunked\r\n", chunk()),
    "identity": post(b"Transfer-Encoding: identity\r\n" + LENGTH),
    "chunked last": post(b"Transfer-Encoding: gzip, chunked\r\n", chunk()),
    "chunked twice": post(CHUNKED * 2, chunk()),
    "a blank before the colon": post(b"Transfer-Encoding : chunked\r\n", chunk()),
    "two lengths": post(LENGTH + b"Content-Length: 5\r\n"),
    "a list of lengths": post(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))),
    "chunks that end with LF": post(CHUNKED, chunk().replace(b"\r\n", b"\n")),
    "trailer with a length": post(CHUNKED, chunk(last=b"0\r\n" + LENGTH + b"\r\n")),
    "folded length": post(b"Content-Length:\r\n %d\r\n" % len(BODY)),
    "lines that end with LF": post(LENGTH, b"").replace(b"\r\n", b"\n") + BODY,
    "LF in a value": post(b"X-A: b\nContent-Length: 3\r\n" + LENGTH),
    "HTTP/1.2": post(LENGTH, version=b"1.2"),
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}

LAST = {
    "HTTP/1.0": post(LENGTH, version=b"1.0"),
    "HTTP/1.0 that expects": post(b"Expect: 100-continue\r\n" + LENGTH, version=b"1.0"),
    "close": post(b"Connection: close\r\n" + LENGTH),
}


def statuses(received: bytes) -> list[int]:
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def answers(front: Front, request: bytes) -> bytes:
    with connected(front) as connection:
        send(connection, request + NEXT)
        return until_closed(connection)


@pytest.mark.parametrize("request_bytes", SERVED.values(), ids=SERVED.keys())
def test_a_request_is_served_and_what_follows_it_is_the_next_one(front: Front, request_bytes: bytes) -> None:
    received = answers(front, request_bytes)
    assert statuses(received) == [200, 200]
    assert received.count(b"x-request-id: next\r\n") == 1


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED.keys())
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_the_last(
    front: Front, request_bytes: bytes
) -> None:
    # Where the answer is cut off, as another request was sent ahead of it, nothing has run either.
    received = answers(front, request_bytes)
    assert statuses(received) in ([400], [])
    assert b"x-request-id: next\r\n" not in received


@pytest.mark.parametrize("request_bytes", LAST.values(), ids=LAST.keys())
def test_nothing_runs_behind_the_last_request(front: Front, request_bytes: bytes) -> None:
    received = answers(front, request_bytes)
    assert statuses(received) == [200]
    assert b"x-request-id: next\r\n" not in received


@pytest.mark.parametrize("offer", [b"", OFFER], ids=["plain", "h2c"])
def test_a_body_that_is_sent_once_it_is_asked_for_is_the_requests(front: Front, offer: bytes) -> None:
    with connected(front) as connection:
        send(connection, post(offer + b"Expect: 100-continue\r\n" + LENGTH, b""))
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        send(connection, BODY + NEXT)
        received = until_closed(connection)
    assert statuses(received) == [200, 200]


def test_a_request_answered_before_its_body_was_asked_for_is_the_last(front: Front) -> None:
    head = b"POST /v1/modes HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connected(front) as connection:
        send(connection, head + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(NEXT))
        received = until_closed(connection)
    assert statuses(received) == [405]
    assert b"connection: close\r\n" in received


@pytest.mark.parametrize("segment_bytes", [1, 7, 100])
@pytest.mark.parametrize("name", ["h2c, length", "h2c, chunked", "h2c with a body of a GET", "trailer"])
def test_a_request_is_served_however_it_is_cut(front: Front, name: str, segment_bytes: int) -> None:
    with accepted(front) as (connection, own):
        feed(front, own, SERVED[name] + NEXT, segment_bytes)
        received = until_closed(connection)
    assert statuses(received) == [200, 200]
    assert received.count(b"x-request-id: next\r\n") == 1
