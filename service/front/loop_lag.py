"""How late the event loop is: one piece of work that takes long holds every other request of the front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

INTERVAL_SECONDS = 0.02
"""As long as one request may hold the loop: whatever holds it longer is seen. Some 10 µs of each second's 50
readings are the price."""


class LoopLag:
    """Reports to `record`, at every interval, by how many seconds the loop came late to it."""

    def __init__(self, record: Callable[[float], None]) -> None:
        self._record = record
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin; there is a running loop."""
        self._due = monotonic() + INTERVAL_SECONDS
        self._timer = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._read)

    def stop(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        self._record(max(0.0, monotonic() - self._due))
        self.start()
