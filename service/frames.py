"""Frames over a Unix stream socket between two processes of this machine: a length, then as many bytes.

Addresses are names of the kernel alone, not files: nothing of them outlives its process. As any user may
connect to one, both ends check the user of the other.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from time import monotonic

LENGTH_BYTES = 4
CHUNK_BYTES = 65536


def listen(address: str) -> socket.socket:
    """A socket that listens at `address`, for one peer. Raises OSError where that is taken or too long."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{address}")
        listener.listen(1)
    except OSError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> FrameStream | None:
    """A stream to who has connected; None where that is another user, whose connection is closed."""
    connected, _ = listener.accept()
    if _is_of_this_user(connected):
        return FrameStream(connected)
    connected.close()
    return None


def connect(address: str) -> FrameStream:
    """A stream to who listens at `address`. Raises OSError where nobody does, or another user."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.connect(f"\0{address}")
        if not _is_of_this_user(connected):
            raise PermissionError(f"another user listens at {address}")
    except OSError:
        connected.close()
        raise
    return FrameStream(connected)


def _is_of_this_user(connected: socket.socket) -> bool:
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", credentials)
    return bool(user == os.geteuid())


class FrameStream:
    """One end of a connection, for one thread. Neither `send` nor `receive` ever blocks.

    What the peer has not taken yet leaves with a later `send` or `flush`.
    """

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self._socket = connected
        self._unsent = bytearray()
        self._partial = bytearray()
        self._ended = False
        self._poll = select.poll()

    def fileno(self) -> int:
        """The descriptor: readable from the arrival of a frame, or of the end, until it is received."""
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, frame: bytes) -> None:
        """Send `frame`, of less than 4 GiB. Raises ConnectionError where the peer has gone."""
        data = len(frame).to_bytes(LENGTH_BYTES, "little") + frame
        if self._unsent:
            self._unsent += data
            self.flush()
            return
        sent = self._send(data)
        if sent < len(data):
            self._unsent += data[sent:]

    def flush(self) -> None:
        """Send of what is kept as much as the peer takes. Raises ConnectionError where it has gone."""
        if self._unsent:
            del self._unsent[: self._send(self._unsent)]

    def wait(self, milliseconds: float | None = 0) -> bool:
        """Wait until there is something to receive; False: not within `milliseconds` (None: no limit).

        Meanwhile what is kept leaves as the peer takes it.
        """
        end = inf if milliseconds is None else monotonic() + milliseconds / 1e3
        while True:
            ready = self._ready(select.POLLIN | (select.POLLOUT if self._unsent else 0), end)
            if not ready or ready[0][1] & ~select.POLLOUT:
                return bool(ready)
            self.flush()

    def receive(self) -> list[bytes]:
        """All frames that have arrived whole. Raises EOFError once the peer has gone and all are received."""
        while True:
            try:
                data = self._socket.recv(CHUNK_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self._ended = True
                break
            if not self._partial and len(data) == LENGTH_BYTES + _length(data) < CHUNK_BYTES:
                return [data[LENGTH_BYTES:]]  # as usual: one frame, and all of it
            self._partial += data
            if len(data) < CHUNK_BYTES:
                break
        frames = list(self._whole())
        if self._ended and not frames:
            raise EOFError("the process at the other end of the socket has closed it")
        return frames

    def close(self, linger_seconds: float = 0.0) -> None:
        """Close, after giving the peer up to `linger_seconds` to take what is kept."""
        end = monotonic() + linger_seconds
        with suppress(ConnectionError):
            self.flush()
            while self._unsent and monotonic() < end and self._ready(select.POLLOUT, end):
                self.flush()
        self._socket.close()

    def _ready(self, events: int, end: float) -> list[tuple[int, int]]:
        """Wait until one of `events` has come, at most until `end` on the monotonic clock."""
        self._poll.register(self._socket, events)
        return self._poll.poll(None if end == inf else max(0.0, (end - monotonic()) * 1e3))

    def _send(self, data: bytes | bytearray) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def _whole(self) -> Iterator[bytes]:
        """Take the whole frames out of what has arrived."""
        begin, partial = 0, self._partial
        while len(partial) - begin >= LENGTH_BYTES:
            first = begin + LENGTH_BYTES
            end = first + _length(partial[begin:first])
            if end > len(partial):
                break
            yield bytes(partial[first:end])
            begin = end
        del partial[:begin]


def _length(data: bytes | bytearray) -> int:
    """Of the frame whose length `data` begins with."""
    return int.from_bytes(data[:LENGTH_BYTES], "little")
