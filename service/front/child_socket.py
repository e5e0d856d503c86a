"""The front's socket to one child process, driven by the event loop directly."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from service.protocol.frames import FrameStream, accept, listen


class ChildSocket:
    """Listens for one child: `received` is called with each frame; what it raises ends in `broken`.

    `address`, which ends with `name`, is for the child alone to know.
    """

    def __init__(self, name: str, received: Callable[[bytes], None]) -> None:
        self.address = f"launchbound-{secrets.token_hex(16)}-{name}"
        self._listener = listen(self.address)
        self._listener.setblocking(False)
        self._received = received
        self._stream: FrameStream | None = None
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self.broken: asyncio.Future[Exception] = self._loop.create_future()

    def send(self, frame: bytes) -> bool:
        """Send a frame without blocking. False: no process is connected."""
        stream = self._stream
        if stream is None:
            return False
        try:
            stream.send(frame)
        except ConnectionError:
            return False
        if stream.unsent:
            self._loop.add_writer(stream.fileno(), self._flush)
        return True

    def drain(self) -> None:
        """Receive all frames that have arrived."""
        stream = self._stream
        if stream is None:
            return
        try:
            for frame in stream.receive():
                self._received(frame)
        except EOFError:
            # The process has ended or is about to: whoever watches it says how.
            self._disconnect(stream)
        except Exception as error:  # noqa: BLE001 - whatever a frame caused, the supervisor ends this process
            if not self.broken.done():
                self.broken.set_result(error)

    def close(self) -> None:
        """Stop listening; what is not yet sent is dropped."""
        self._loop.remove_reader(self._listener.fileno())
        self._listener.close()
        if self._stream is not None:
            self._disconnect(self._stream)

    def _accept(self) -> None:
        stream = accept(self._listener)
        if stream is not None:
            self._loop.remove_reader(self._listener.fileno())  # one child, one connection
            self._stream = stream
            self._loop.add_reader(stream.fileno(), self.drain)

    def _flush(self) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            stream.flush()
        except ConnectionError:
            self._disconnect(stream)
            return
        if not stream.unsent:
            self._loop.remove_writer(stream.fileno())

    def _disconnect(self, stream: FrameStream) -> None:
        self._loop.remove_reader(stream.fileno())
        self._loop.remove_writer(stream.fileno())
        stream.close()
        self._stream = None
