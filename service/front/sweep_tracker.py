"""Whether a sweep is measuring this service now, by its requests' `X-Launchbound-Run`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

RUN_SECONDS = 30.0
"""A sweep is in progress until this long after its last request ended."""


class SweepTracker:
    """`begun` is called at each request of a sweep, so that a study, which would disturb it, stops."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self._requests = 0
        self._last: float | None = None

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request of a sweep, from its arrival to its end."""
        self._requests += 1
        self._begun()
        try:
            yield
        finally:
            self._requests -= 1
            self._last = monotonic()

    def seconds_left(self) -> float:
        """Seconds until the sweep counts as over if no further request arrives; 0 without a sweep."""
        if self._requests:
            return RUN_SECONDS
        return 0.0 if self._last is None else max(0.0, self._last + RUN_SECONDS - monotonic())
