"""What clients do to a connection has an end, and a request ends where its head says."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from service.front.app import SEND_BYTES
from service.front.limits import (
    LARGE_BYTES,
    LEAST_SLOTS,
    MAX_HEAD_BYTES,
    MAX_HEADERS,
    MAX_PIECES,
    MAX_PIPELINED,
    RESERVED,
    LargeBodies,
    UnreadAnswer,
    affordable,
)
from tests.support.serving import BODY as FIELDS
from tests.support.serving import (
    HEAD,
    Front,
    RawAnswer,
    connected,
    exchange,
    logged,
    parsed,
    running,
    send,
    until,
    until_closed,
)

GET = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
LAST = b"Connection: close\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
ENDLESS = 4_000_000
"""Bytes of what has no end: far more than any limit."""


@pytest.fixture(scope="module")
def hurried() -> Iterator[Front]:
    seconds = dict.fromkeys(("head_timeout_seconds", "body_timeout_seconds", "unread_timeout_seconds"), 0.2)
    with running({"max_queue": 4, **seconds}) as started:
        started.await_ready()
        yield started


ENDLESS_HEADS = {
    "a header": GET + b"X-Long: " + b"x" * ENDLESS,
    "headers": GET + b"X-Many: 1\r\n" * (ENDLESS // 11),
    "short headers, complete": GET + b"a:\r\n" * (MAX_HEADERS + 1) + b"\r\n",
    "a long head, complete": GET + b"X: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n",
    "an address": b"GET /" + b"x" * ENDLESS,
    "trailers": CHUNKED + b"0\r\n" + b"X-Many: 1\r\n" * (ENDLESS // 11),
}


@pytest.mark.parametrize("head", ENDLESS_HEADS.values(), ids=ENDLESS_HEADS.keys())
def test_a_head_without_end_is_refused_and_the_connection_closed(front: Front, head: bytes) -> None:
    before = front.series()['requests_rejected_total{reason="too_large"}']
    answer = exchange(front, head)
    assert (answer.status, answer.error()["type"]) == (431, "head_too_large")
    assert front.series()['requests_rejected_total{reason="too_large"}'] == before + 1


STALLED = {
    "an address": b"GET /",
    "headers": GET,
    "a small body": HEAD + b"Content-Length: 100\r\n\r\n{",
    "a large body": HEAD + b"Content-Length: 900000\r\n\r\n{",
}


@pytest.mark.parametrize("begun", STALLED.values(), ids=STALLED.keys())
def test_a_head_or_a_body_that_stalls_is_a_408_and_the_connection_is_closed(
    hurried: Front, begun: bytes
) -> None:
    answer = exchange(hurried, begun)
    assert (answer.status, answer.error()["type"]) == (408, "too_slow")
    assert answer.headers["connection"] == "close"


def test_a_second_head_that_stalls_is_closed_too_and_so_is_a_silent_connection(hurried: Front) -> None:
    with connected(hurried) as connection, connected(hurried) as silent:
        send(connection, GET + b"\r\n" + b"GET /")
        received = until_closed(connection)
        assert until_closed(silent) == b""
    assert [part[:3] for part in received.split(b"HTTP/1.1 ")[1:]] == [b"200", b"408"]


def test_a_body_that_stalls_where_none_is_read_is_closed_after_the_answer(hurried: Front) -> None:
    head = GET + b"Content-Length: 100\r\n\r\n{"
    assert exchange(hurried, head).status == 200


def test_a_body_over_the_limit_is_refused_by_its_header_and_not_read_for_ever(front: Front) -> None:
    with connected(front) as connection:
        send(connection, HEAD + b"Content-Length: 20000000\r\nExpect: 100-continue\r\n\r\n")
        answer = parsed(connection.recv(65_536))
    assert (answer.status, answer.error()["type"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert exchange(front, HEAD + b"Content-Length: 900000000\r\n\r\n" + b"x" * 3 * ENDLESS).status == 413


def test_a_full_queue_is_a_429_before_a_large_body_is_sent(hurried: Front) -> None:
    queue = hurried.state.client.max_queue
    try:
        hurried.state.client.max_queue = 0
        with connected(hurried) as connection:
            send(connection, HEAD + b"Content-Length: 900000\r\nExpect: 100-continue\r\n\r\n")
            answer = parsed(connection.recv(65_536))
    finally:
        hurried.state.client.max_queue = queue
    assert (answer.status, answer.error()["type"]) == (429, "queue_full")
    assert int(answer.headers["retry-after"]) > 0


def test_so_many_large_bodies_are_received_at_a_time_and_small_ones_still_are(front: Front) -> None:
    places = front.state.settings.max_queue
    assert [LargeBodies(most).slots for most in (1, places, 500)] == [LEAST_SLOTS, places, 500]
    head = HEAD + b"Content-Length: %d\r\n\r\n{" % (LARGE_BYTES + 1)
    with ExitStack() as stack:
        for _ in range(places):
            send(stack.enter_context(connected(front)), head)
        until(lambda: front.state.large_bodies._reading == places, "all places to be taken")
        with connected(front) as one_more:
            send(one_more, head)
            answer = parsed(one_more.recv(65_536))
        assert (answer.status, answer.error()["type"]) == (429, "queue_full")
        assert front.generate().status_code == 200
    until(lambda: front.state.large_bodies._reading == 0, "all places to be free")


def test_a_body_in_very_many_pieces_is_refused(front: Front) -> None:
    answer = exchange(front, CHUNKED + b"1\r\n \r\n" * (MAX_PIECES + 1))
    assert (answer.status, answer.error()["type"]) == (400, "malformed_request")


def test_very_many_requests_ahead_are_cut_off(front: Front) -> None:
    with connected(front) as connection:
        send(connection, (GET + b"\r\n") * (10 * MAX_PIPELINED))
        received = until_closed(connection)
    assert received.count(b"HTTP/1.1 200") <= MAX_PIPELINED + 1


def test_what_is_no_http_is_a_400_in_the_one_shape(front: Front) -> None:
    answer = exchange(front, b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
    assert (answer.status, answer.error()["type"]) == (400, "malformed_request")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_over_the_limit_a_connection_is_told_so_and_closed() -> None:
    with running({"max_connections": 2}) as front, ExitStack() as stack:
        front.http.close()
        held = [stack.enter_context(connected(front)) for _ in range(2)]
        for connection in held:
            send(connection, GET + b"\r\n")
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        for sent in (b"", b"GET /", HEAD + b"\r\n"):
            answer = exchange(front, sent)
            assert (answer.status, answer.error()["type"]) == (503, "too_many_connections")
        assert rejected(front, "connections") == 3
        assert rejected(front, "queue_full") == 0
        held[0].close()

        def served() -> bool:
            with connected(front) as another:
                send(another, GET + LAST)
                return until_closed(another).startswith(b"HTTP/1.1 200")

        until(served, "a free connection")


PROBES = ("/health", "/health/live", "/health/ready", "/metrics")


def ask(front: Front, path: str) -> RawAnswer:
    return exchange(front, b"GET %s HTTP/1.1\r\nHost: 10.0.0.7\r\n\r\n" % path.encode())


def rejected(front: Front, reason: str) -> int:
    """By a scrape on a connection of its own."""
    line = b'requests_rejected_total{reason="%s"} ' % reason.encode()
    return int(float(ask(front, "/metrics").body.partition(line)[2].split()[0]))


def test_probes_and_scrapes_are_answered_however_many_connections_are_silent() -> None:
    with logged() as lines, running({"max_connections": 4}) as front, ExitStack() as stack:
        front.await_ready()
        front.http.close()
        for _ in range(4 + 3 * RESERVED):
            stack.enter_context(connected(front))
        answers = {path: ask(front, path) for path in PROBES}
        assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(PROBES, 200)
        assert all(answer.headers["connection"] == "close" for answer in answers.values())
        open_now = answers["/metrics"].body.partition(b"\nlaunchbound_connections ")[2].split()[0]
        assert 4 < float(open_now) <= 4 + RESERVED
        until(lambda: len(front.server.connections) <= 4 + RESERVED, "the end of those crowded out")
        assert rejected(front, "connections") >= 2 * RESERVED
    warnings = [line["message"] for line in lines.objects("connections") if line["level"] == "warning"]
    assert len(warnings) == 1
    assert "all 4 connections are taken" in warnings[0]
    assert "LAUNCHBOUND_MAX_CONNECTIONS" in warnings[0]


def test_a_connection_beyond_the_limit_has_a_second_for_its_head() -> None:
    with running({"max_connections": 1, "head_timeout_seconds": 3600}) as full, connected(full):
        full.http.close()
        assert exchange(full, b"GET /health/live HTTP/1.1\r\n").status == 503


@contextmanager
def accepted(front: Front, receive_bytes: int | None = None) -> Iterator[tuple[socket.socket, Any]]:
    """A connection, and what the front has of it."""
    before = set(front.server.connections)
    with connected(front, receive_bytes) as connection:
        (own,) = until(lambda: front.server.connections - before, "the connection")
        yield connection, own


def feed(front: Front, own: Any, data: bytes, segment_bytes: int) -> None:
    """Have the front receive `data` in just these segments, which a socket might join."""
    loop = front.state.supervisor._task.get_loop()
    for start in range(0, len(data), segment_bytes):
        loop.call_soon_threadsafe(own.data_received, data[start : start + segment_bytes])


def test_what_a_connection_holds_unread_in_the_kernel_is_bounded_in_size_and_time(front: Front) -> None:
    with accepted(front) as (_, own):
        taken = own.transport.get_extra_info("socket")
        # Linux doubles it, for its own bookkeeping.
        assert taken.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * SEND_BYTES
        milliseconds = taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert milliseconds == 1000 * front.state.settings.unread_timeout_seconds


def test_an_answer_that_nobody_reads_is_given_up(hurried: Front) -> None:
    with accepted(hurried, receive_bytes=4096) as (connection, own):
        send(connection, b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # The file is ten times what the kernel holds: who has read nothing has not been sent all of it.
        until(lambda: own not in hurried.server.connections, "the end of the connection")


def test_a_reader_is_cut_off_when_it_stops_and_not_while_it_takes_some_each_time() -> None:
    loop, transport = Mock(), Mock()
    unread = UnreadAnswer(loop, transport, 30.0)

    def run_out() -> None:
        """The newest timer's time is up."""
        seconds, callback = loop.call_later.call_args.args
        assert seconds == 30.0
        callback()

    transport.get_write_buffer_size.return_value = 1_000_000
    unread.paused()
    for _ in range(5):
        transport.get_write_buffer_size.return_value -= 100_000
        run_out()
    transport.abort.assert_not_called()
    unread.over()
    loop.call_later.return_value.cancel.assert_called_once()
    unread.paused()
    run_out()
    transport.abort.assert_called_once()


@pytest.mark.parametrize("later", [b"\r\n", b"\r\n\r\n", b"body", b"body\r\n"])
def test_a_connection_that_sends_no_request_after_its_answer_is_closed(front: Front, later: bytes) -> None:
    """Be it empty lines, or a body that nobody read."""
    length = b"Content-Length: 4\r\n" if later.startswith(b"body") else b""
    with accepted(front) as (connection, own):
        own.timeout_keep_alive = 0.2
        send(connection, GET + length + b"\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        send(connection, later)
        assert until_closed(connection) == b""


def test_a_request_that_follows_an_answer_has_no_keep_alive_timer_until_it_is_answered(
    front: Front, tmp_path: Path
) -> None:
    body = json.dumps({"prompts": [f"!hold {tmp_path / 'go'}"]}).encode()
    with accepted(front) as (connection, own):
        send(connection, GET + b"\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        until(lambda: own.timeout_keep_alive_task, "the timer")
        send(connection, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        until(front.state.client.in_progress, "the request")
        assert own.timeout_keep_alive_task is None
        (tmp_path / "go").touch()
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("segment_bytes", [100, 1460, 9000, 65_536])
@pytest.mark.parametrize(
    "fields",
    [b"X: " + b"x" * (MAX_HEAD_BYTES - 200) + b"\r\n", (b"X-Part: " + b"x" * 490 + b"\r\n") * 64],
    ids=["one long field", "many fields"],
)
def test_a_head_within_the_limit_is_served_in_segments_of_any_size(
    front: Front, fields: bytes, segment_bytes: int
) -> None:
    head = GET + fields + LAST
    assert MAX_HEAD_BYTES * 0.95 < len(head) <= MAX_HEAD_BYTES
    with accepted(front) as (connection, own):
        feed(front, own, head, segment_bytes)
        assert until_closed(connection).startswith(b"HTTP/1.1 200")


def test_a_long_body_in_chunks_whose_sizes_come_alone_is_no_head(front: Front) -> None:
    with accepted(front) as (connection, own):
        feed(front, own, CHUNKED, len(CHUNKED))
        feed(front, own, b"00000008\r\nsomebody\r\n" * 4096 + b"0\r\n\r\n", 10)
        assert parsed(connection.recv(65_536)).status == 422


def test_silent_clients_accepted_in_one_go_do_not_crowd_out_a_head_that_was_sent() -> None:
    """One that the front has not read yet, as it accepts many connections before it reads from any."""
    silent = [Mock(idle=True) for _ in range(2 * RESERVED)]
    with running({"max_connections": 1}) as full, accepted(full), accepted(full) as (probe, own):

        def crowd() -> None:
            send(probe, GET + LAST)
            for one in silent:
                own._slots.take(one)
            for one in silent:
                own._slots.leave(one)

        full.state.supervisor._task.get_loop().call_soon_threadsafe(crowd)
        assert until_closed(probe).startswith(b"HTTP/1.1 200")
    assert sum(one.crowd_out.called for one in silent) > RESERVED


@pytest.fixture
def limit() -> Iterator[Callable[[int, int], None]]:
    """Has this process say that it may open so many files; what it really may stays as it is."""
    with pytest.MonkeyPatch.context() as patched:
        limits = [0, 0]
        patched.setattr(resource, "getrlimit", lambda _: tuple(limits))
        patched.setattr(resource, "setrlimit", lambda _, given: limits.__setitem__(slice(2), given))
        yield lambda soft, hard: limits.__setitem__(slice(2), (soft, hard))


@pytest.mark.parametrize(
    ("soft", "hard", "served", "soft_then"),
    [
        (65_536, 65_536, 512, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 512, resource.RLIM_INFINITY),
        (256, 65_536, 512, 1120),
        (256, resource.RLIM_INFINITY, 512, 1120),
        (128, 1024, 464, 1024),
        (128, 128, 16, 128),
    ],
)
def test_as_many_connections_are_served_as_files_may_be_opened_for_them(
    limit: Callable[[int, int], None], soft: int, hard: int, served: int, soft_then: int
) -> None:
    limit(soft, hard)
    with logged() as lines:
        assert affordable(512) == served
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft_then, hard)
    warned = [line["message"] for line in lines.objects("connections")]
    assert len(warned) == (served < 512)
    assert all(f"at most {served} are served" in text and "ulimit -n" in text for text in warned)


def test_where_no_file_is_left_for_a_connection_the_limit_to_raise_is_named(
    limit: Callable[[int, int], None],
) -> None:
    limit(64, 97)
    with pytest.raises(ValueError, match=r"97 files \(ulimit -n\).* one needs 98: raise that limit"):
        affordable(512)


# Where a request ends is what its head says, whatever else it says: nothing of a body runs as a request


BODY = json.dumps(FIELDS).encode()
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
CHUNKED_FIELD = b"Transfer-Encoding: chunked\r\n"
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
    "chunked": post(CHUNKED_FIELD, chunk()),
    "chunk extension": post(CHUNKED_FIELD, chunk(extension=b";a=b")),
    "trailer": post(CHUNKED_FIELD, chunk(last=b"0\r\nX-T: 1\r\n\r\n")),
    "trailer that names a host": post(
        CHUNKED_FIELD, chunk(last=b"0\r\nHost: evil\r\nOrigin: http://evil\r\n\r\n")
    ),
    "trailer that offers h2c": post(CHUNKED_FIELD, chunk(last=b"0\r\n" + OFFER + b"\r\n")),
    "h2c, length": post(OFFER + LENGTH),
    "h2c, chunked": post(OFFER + CHUNKED_FIELD, chunk()),
    "websocket": post(b"Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\n" + LENGTH),
    "a body of a GET": get(b"Content-Length: %d\r\n" % len(NEXT), NEXT),
    "h2c with a GET": get(OFFER, b""),
    "h2c with a body of a GET": get(OFFER + b"Content-Length: %d\r\n" % len(NEXT), NEXT),
    "empty lines before it": b"\r\n\r\n" + post(LENGTH),
}

REFUSED = {
    "chunked and a length": post(CHUNKED_FIELD + LENGTH, chunk()),
    "another encoding": post(b"Transfer-Encoding: xchunked\r\n", chunk()),
    "identity": post(b"Transfer-Encoding: identity\r\n" + LENGTH),
    "chunked last": post(b"Transfer-Encoding: gzip, chunked\r\n", chunk()),
    "chunked twice": post(CHUNKED_FIELD * 2, chunk()),
    "a blank before the colon": post(b"Transfer-Encoding : chunked\r\n", chunk()),
    "two lengths": post(LENGTH + b"Content-Length: 5\r\n"),
    "a list of lengths": post(b"Content-Length: %d, %d\r\n" % (len(BODY), len(BODY))),
    "chunks that end with LF": post(CHUNKED_FIELD, chunk().replace(b"\r\n", b"\n")),
    "trailer with a length": post(CHUNKED_FIELD, chunk(last=b"0\r\n" + LENGTH + b"\r\n")),
    "folded length": post(b"Content-Length:\r\n %d\r\n" % len(BODY)),
    "lines that end with LF": post(LENGTH, b"").replace(b"\r\n", b"\n") + BODY,
    "LF in a value": post(b"X-A: b\nContent-Length: 3\r\n" + LENGTH),
    "HTTP/1.2": post(LENGTH, version=b"1.2"),
    "CONNECT": b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
}

LAST_OF_ALL = {
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


@pytest.mark.parametrize("request_bytes", LAST_OF_ALL.values(), ids=LAST_OF_ALL.keys())
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
