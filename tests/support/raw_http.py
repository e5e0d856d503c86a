"""A raw connection to a front: sends bytes as they are, and reads what comes back until it is closed."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.support.serving import PATIENCE_SECONDS, Front

HEAD = b"POST /v1/modes/eager/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
"""The head of a request, but for its length and its end."""


class RawAnswer(NamedTuple):
    """One answer, its header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def error(self) -> dict[str, Any]:
        """The error of a body in the one shape."""
        found: dict[str, Any] = json.loads(self.body)["error"]
        return found


@contextmanager
def connected(front: Front, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    """A connection that gives up after PATIENCE_SECONDS, and takes `receive_bytes` before it is read."""
    parts = urlsplit(front.url)
    assert parts.port is not None
    with socket.socket() as opened:
        if receive_bytes is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        opened.settimeout(PATIENCE_SECONDS)
        opened.connect(("127.0.0.1", parts.port))
        yield opened


def send(connection: socket.socket, data: bytes) -> None:
    """Send what the other side takes: it may have answered and closed before the end."""
    try:
        connection.sendall(data)
    except ConnectionError:
        return


def until_closed(connection: socket.socket) -> bytes:
    """Everything that arrives before the other side closes."""
    received = b""
    try:
        while data := connection.recv(65_536):
            received += data
    except ConnectionResetError:
        return received  # closed with bytes of ours unread
    return received


def parsed(received: bytes) -> RawAnswer:
    """The one answer in `received`."""
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return RawAnswer(int(first.split(" ")[1]), headers, body)


def exchange(front: Front, data: bytes) -> RawAnswer:
    """Send `data` and read until the front closes the connection."""
    with connected(front) as connection:
        send(connection, data)
        return parsed(until_closed(connection))
