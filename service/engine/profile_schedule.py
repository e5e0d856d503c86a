"""Which requests run under the profiler without having asked for it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

DEFAULT_EVERY = 200
"""On CUDA, where kernel time is known from profiled steps only: one request in so many, unless it is set.

The sixteen samples that are kept are then those of the last 3,200 requests, few enough to follow a change of
clocks or of the prompts, and a quantile of latency up to the 99th hardly meets a profiled one waiting in
front."""

MOST_SHARE = 0.01
"""At most this share of the engine's time goes into profiling by default: reading a trace takes as long as
some twenty requests, and whatever arrives meanwhile waits."""


class ProfileSchedule:
    """Counts requests: one in `every`, none where 0; None: the default of the device, within MOST_SHARE."""

    def __init__(self, every: int | None, cuda: bool, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._limited = every is None
        self._every = (DEFAULT_EVERY if cuda else 0) if every is None else every
        self._clock = clock
        self._requests = 0
        self._free_ns = 0

    def is_due(self) -> bool:
        """Whether the next request is. Call it once for each.

        One whose turn comes too early for MOST_SHARE is not made up for.
        """
        self._requests += 1
        if self._every == 0 or self._requests % self._every:
            return False
        return not self._limited or self._clock() >= self._free_ns

    def took(self, seconds: float) -> None:
        """A profiled request has just ended, and took so long."""
        self._free_ns = self._clock() + round(seconds / MOST_SHARE * 1e9)
