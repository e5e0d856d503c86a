"""The front's end of an engine's socket, for checks that stand in for a front."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from service.protocol.frames import FrameStream, accept, listen
from service.protocol.messages import ToEngine, ToFront

POLL_SECONDS = 0.1

_decode = msgspec.msgpack.Decoder(ToFront).decode
_encode = msgspec.msgpack.Encoder().encode


class FrontSocket:
    """The front's end, which an engine connects to at its own time."""

    def __init__(self, address: str) -> None:
        self._listener = listen(address)
        self._listener.settimeout(POLL_SECONDS)
        self._stream: FrameStream | None = None

    def receive(self) -> list[ToFront]:
        """The messages that arrive next; none where none has arrived within POLL_SECONDS.

        Raises EOFError once the engine has closed its end and all are received.
        """
        stream = self._connected()
        if stream is None or not stream.wait(POLL_SECONDS * 1e3):
            return []
        return [_decode(frame) for frame in stream.receive()]

    def send(self, message: ToEngine) -> None:
        """Never waits. Raises ConnectionError where no engine is there to receive."""
        if self._stream is None:
            raise ConnectionError("no engine has connected")
        self._stream.send(_encode(message))

    def close(self) -> None:
        """Disconnect."""
        self._listener.close()
        if self._stream is not None:
            self._stream.close()

    def _connected(self) -> FrameStream | None:
        if self._stream is None:
            try:
                self._stream = accept(self._listener)
            except TimeoutError:
                return None
        return self._stream


@contextmanager
def front_socket() -> Iterator[tuple[str, FrontSocket]]:
    """The front's end of the engine's socket, with its address."""
    address = f"launchbound-{secrets.token_hex(16)}-selftest"
    front = FrontSocket(address)
    try:
        yield address, front
    finally:
        front.close()
