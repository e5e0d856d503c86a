"""Whether a sweep is measuring this service now, by its requests' `X-Launchbound-Run`."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import monotonic

from service.front.errors import RunInProgress

RUN_SECONDS = 30.0
"""A sweep is in progress until this long after its last request ended."""


class SweepTracker:
    """`disturbed` is called at each request of a sweep, so that a study, which would disturb it, stops."""

    def __init__(self, disturbed: Callable[[], None]) -> None:
        self._disturbed = disturbed
        self._requests = 0
        self._last: float | None = None

    def began(self) -> None:
        """The engine accepted a request of a sweep."""
        self._requests += 1
        self._disturbed()

    def ended(self) -> None:
        """That request has ended."""
        self._requests -= 1
        self._last = monotonic()

    def refuse(self, what: str) -> None:
        """Raise RunInProgress while a sweep is in progress, as `what` would disturb it."""
        if left := self.seconds_left():
            message = f"a sweep is in progress, which {what} would disturb: wait until it has ended"
            raise RunInProgress(message, retry_after_seconds=math.ceil(left))

    def seconds_left(self) -> float:
        """Seconds until the sweep counts as over if no further request arrives; 0 without a sweep."""
        if self._requests:
            return RUN_SECONDS
        return 0.0 if self._last is None else max(0.0, self._last + RUN_SECONDS - monotonic())
