"""How late the event loop is: one piece of work that takes long holds every other request of the front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

INTERVAL_SECONDS = 0.25
"""Work that holds the loop longer is always seen, and shorter work as often as its share of the time.

Readings go on during timed steps, where each takes a core that front and engine share from the engine: 50 a
second alone would mark steps of more than 1 ms as disturbed. Their pace is the same with requests
and without, so that all weigh the same; an idle front wakes 10 times a second anyway, for the server.
"""


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
