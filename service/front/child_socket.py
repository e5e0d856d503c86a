"""The front's socket to one child process, driven by the event loop directly.

A plain socket under `add_reader`: a round trip is about 50 µs shorter than with `zmq.asyncio`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import zmq


class ChildSocket:
    """A bound PAIR socket: `received` is called with each frame; what it raises is the result of `broken`."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], address: str, received: Callable[[bytes], None]
    ) -> None:
        self._socket = context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, 0)  # admission bounds the queue, so a send never blocks
        self._socket.bind(address)
        self._received = received
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self.drain)
        self.broken: asyncio.Future[Exception] = self._loop.create_future()

    def send(self, frame: bytes) -> bool:
        """Hand a frame to zmq's own thread. False: no process is connected."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        # The descriptor is edge-triggered, and a send may have consumed the edge of an arrival.
        if self._readable():
            self._loop.call_soon(self.drain)
        return True

    def drain(self) -> None:
        """Receive all frames that have arrived."""
        try:
            while not self._socket.closed and self._readable():
                self._received(self._socket.recv())
        except Exception as error:  # noqa: BLE001 - whatever a frame caused, the supervisor ends this process
            if not self.broken.done():
                self.broken.set_result(error)

    def close(self) -> None:
        """Stop listening; frames not yet sent are dropped."""
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _readable(self) -> bool:
        return bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)
