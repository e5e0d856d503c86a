"""Bytes that are almost HTTP: answers are whole and declared, and nothing is read as what it is not."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.service import KEY, PATIENCE_SECONDS, Fuzzed, bounded
from tests.support.serving import RawAnswer

PAUSE_SECONDS = 0.05
"""So long nothing has come: the service may be waiting for more. What is then sent is the end."""

END_OF_HEAD = b"\r\n\r\n"


def exchange(url: str, segments: Iterable[bytes], closes: bool = False) -> bytes:
    """Send `segments`, and read until the service closes. Where it is silent, our side ends the connection.

    `closes`: the last request has the service close, so it is waited for, and every answer is received.
    """
    parts = urlsplit(url)
    address = str(parts.hostname), int(parts.port or 0)
    received = b""
    with socket.create_connection(address, PATIENCE_SECONDS) as connection:
        try:
            for segment in segments:
                connection.sendall(segment)
            if not closes:
                connection.settimeout(PAUSE_SECONDS)
            while data := _receive(connection):
                received += data
        except ConnectionError:
            return received  # closed with bytes of ours unread, or before all were sent
    return received


def _receive(connection: socket.socket) -> bytes:
    """What comes next; empty at the end. Raises TimeoutError where there is neither."""
    try:
        return connection.recv(65_536)
    except TimeoutError:
        if connection.gettimeout() != PAUSE_SECONDS:
            raise
    with suppress(OSError):  # it may just have closed
        connection.shutdown(socket.SHUT_WR)
    connection.settimeout(PATIENCE_SECONDS)
    return connection.recv(65_536)


def answers(received: bytes) -> list[RawAnswer]:
    """The answers in what was received. Raises AssertionError where that is no sequence of whole ones."""
    found = []
    while received:
        answer, received = _first(received)
        if answer.status >= 200:
            found.append(answer)
    return found


def _first(received: bytes) -> tuple[RawAnswer, bytes]:
    head, separator, rest = received.partition(END_OF_HEAD)
    assert separator, f"a head without end: {received[:200]!r}"
    first, *lines = head.decode("latin-1").split("\r\n")
    protocol, status, _ = first.split(" ", 2)
    assert protocol == "HTTP/1.1"
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), f"a header twice: {pairs}"
    if int(status) < 200:
        return RawAnswer(int(status), headers, b""), rest
    if headers.get("transfer-encoding") == "chunked":
        body, rest = _chunks(rest)
    else:
        length = int(headers["content-length"])
        assert len(rest) >= length, "a body that was cut off"
        body, rest = rest[:length], rest[length:]
    return RawAnswer(int(status), headers, body), rest


def _chunks(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, separator, rest = rest.partition(b"\r\n")
        assert separator, "chunks without end"
        length = int(size, 16)
        assert rest[length : length + 2] == b"\r\n"
        body, rest = body + rest[:length], rest[length + 2 :]
        if not length:
            return body, rest


HOST = b"Host: localhost\r\nAuthorization: Bearer " + KEY.encode() + b"\r\n"
JSON = b"Content-Type: application/json\r\n"
GET = b"GET /health/live HTTP/1.1\r\n" + HOST + b"\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
MODELS = b"GET /v1/models HTTP/1.1\r\n" + HOST + b"\r\n"
BODY = b'{"prompts": ["a"], "max_new_tokens": 1}'
HEAD = b"POST /v1/modes/eager/generate HTTP/1.1\r\n" + HOST + JSON
POST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
REQUESTS = (GET, MODELS, POST, WHOLE)
REFUSALS = {400, 401, 403, 404, 405, 408, 413, 415, 422, 431}


def check(fuzzed: Fuzzed, found: list[RawAnswer]) -> None:
    """Every answer is a good one or a declared refusal in the one shape."""
    for answer in found:
        assert answer.status == 200 or answer.status in REFUSALS, answer
        value: Any = json.loads(answer.body)
        if answer.status != 200:
            fuzzed.declared.conforms_to("ErrorBody", value)


ODD_BYTES = (
    b"\r", b"\n", b"\x00", b"\xff", b" ", b"\t", b":", b"%", b"%00", b"\r\n", b"\r\n\r\n", b"\r\n ",
    b"0\r\n\r\n", b"x" * 70_000, b"Content-Length: 0\r\n", b"Content-Length: 7\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\n", b"Host: example.org\r\n", b"Origin: http://[\r\n",
    b"X-Request-ID: \x01\r\n", GET,
)  # fmt: skip


@st.composite
def almost_http(draw: st.DrawFn) -> list[bytes]:
    """Requests after one another, cut, changed, and sent in pieces."""
    stream = b"".join(draw(st.lists(st.sampled_from(REQUESTS), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(stream)))
        end = draw(st.integers(start, min(len(stream), start + 20)))
        put = draw(st.sampled_from(ODD_BYTES) | st.binary(max_size=20))
        stream = stream[:start] + put + stream[draw(st.sampled_from([start, end])) :]
    if draw(st.booleans()):
        stream = stream[: draw(st.integers(0, len(stream)))]
    cut = draw(st.integers(0, len(stream)))
    return [stream[:cut], stream[cut:]]


@bounded(120)
@given(segments=almost_http())
def test_what_is_almost_http_comes_to_an_end_with_whole_and_declared_answers(
    fuzzed: Fuzzed, segments: list[bytes]
) -> None:
    check(fuzzed, answers(exchange(fuzzed.url, segments)))


@bounded(40)
@given(sent=st.lists(st.sampled_from(REQUESTS), max_size=7), cuts=st.lists(st.integers(0, 1200), max_size=6))
def test_requests_sent_ahead_are_answered_in_their_order_however_they_are_cut(
    fuzzed: Fuzzed, sent: list[bytes], cuts: list[int]
) -> None:
    stream = b"".join(sent) + LAST
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    segments = [stream[start:end] for start, end in pairwise(places)]
    found = answers(exchange(fuzzed.url, segments, closes=True))
    assert [answer.status for answer in found] == [200] * (len(sent) + 1)
    kinds = {GET: "status", MODELS: "data", POST: "outputs", WHOLE: "outputs"}
    for request, answer in zip(sent, found, strict=False):
        assert kinds[request] in json.loads(answer.body)


ODD_SIZES = st.sampled_from(
    [b"", b"-1", b"0x1", b"g", b" 1", b"1 ", b"+1", b"1;a=b", b"00000001", b"f" * 17, b"1\r", b"1\n", b"\xff"]
)
ENDS = (b"0\r\n\r\n", b"0\r\n", b"", b"0\r\nX: y\r\n\r\n", b"0\r\nContent-Length: 1\r\n\r\n")


@st.composite
def false_chunks(draw: st.DrawFn) -> bytes:
    """Chunks whose sizes are wrong, or odd, or right."""
    sizes = ODD_SIZES | st.integers(0, 40).map(lambda size: b"%x" % size)
    parts = st.tuples(sizes, st.binary(max_size=20), st.sampled_from([b"", b"\r\n"]))
    chunks = draw(st.lists(parts, max_size=4))
    return b"".join(size + b"\r\n" + data + end for size, data, end in chunks) + draw(st.sampled_from(ENDS))


@bounded(60)
@given(body=false_chunks())
def test_a_body_in_false_chunks_is_refused(fuzzed: Fuzzed, body: bytes) -> None:
    found = answers(exchange(fuzzed.url, [CHUNKED + body]))
    check(fuzzed, found)
    assert all(answer.status != 200 for answer in found)
