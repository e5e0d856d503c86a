"""A connection on which any bytes are sent, and what comes back, read as strictly as HTTP/1.1 is written."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from tests.fuzz.service import PATIENCE_SECONDS

PAUSE_SECONDS = 0.05
"""So long nothing has come: the service may be waiting for more. What is then sent is the end."""

END_OF_HEAD = b"\r\n\r\n"


class Answer(NamedTuple):
    """One answer, its header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


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


def answers(received: bytes) -> list[Answer]:
    """The answers in what was received. Raises AssertionError where that is no sequence of whole ones."""
    found = []
    while received:
        answer, received = _first(received)
        if answer.status >= 200:
            found.append(answer)
    return found


def _first(received: bytes) -> tuple[Answer, bytes]:
    head, separator, rest = received.partition(END_OF_HEAD)
    assert separator, f"a head without end: {received[:200]!r}"
    first, *lines = head.decode("latin-1").split("\r\n")
    protocol, status, _ = first.split(" ", 2)
    assert protocol == "HTTP/1.1"
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    assert len(headers) == len(pairs), f"a header twice: {pairs}"
    if int(status) < 200:
        return Answer(int(status), headers, b""), rest
    if headers.get("transfer-encoding") == "chunked":
        body, rest = _chunks(rest)
    else:
        length = int(headers["content-length"])
        assert len(rest) >= length, "a body that was cut off"
        body, rest = rest[:length], rest[length:]
    return Answer(int(status), headers, body), rest


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
