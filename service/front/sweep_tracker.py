"""Whether a sweep is measuring this service now, from its requests' `X-Launchbound-Run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

RUN_SECONDS = 30.0
"""A run is in progress until this long after its last request ended."""


class SweepTracker:
    """`begun` is called for each request of a run, so that whatever would disturb it stops."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self._requests = 0
        self._last: float | None = None

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request of a run, from its arrival to its end."""
        self._requests += 1
        self._begun()
        try:
            yield
        finally:
            self._requests -= 1
            self._last = monotonic()

    def seconds_left(self) -> float:
        """How long until no run is in progress, as far as is known; 0 where none is."""
        if self._requests:
            return RUN_SECONDS
        return 0.0 if self._last is None else max(0.0, self._last + RUN_SECONDS - monotonic())
