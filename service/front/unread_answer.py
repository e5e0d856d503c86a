"""Cuts off a connection whose client has stopped reading its answer."""

from __future__ import annotations

import asyncio


class UnreadAnswer:
    """While writing is paused, looks every `seconds` at what is unwritten: aborts where none of it was taken.

    The transport tells only when nearly all of it has been: a large answer may take a steady reader longer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, seconds: float) -> None:
        self._loop = loop
        self._transport = transport
        self._seconds = seconds
        self._unwritten = 0
        self._timer: asyncio.TimerHandle | None = None

    def paused(self) -> None:
        """More is unwritten than the transport likes to hold."""
        self._unwritten = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(self._seconds, self._look)

    def over(self) -> None:
        """The client has taken nearly all, or has gone."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self._transport.get_write_buffer_size() < self._unwritten:
            self.paused()
        else:
            self._transport.abort()
