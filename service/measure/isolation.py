"""How much of its cores others took from a check while it measured: a failure then decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns


class Disturbance:
    """Wall time in which a thread that never sleeps did not run: somebody else did."""

    def __init__(self) -> None:
        self._wall_ns = self._own_ns = 0

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within: this thread works without a pause."""
        wall, own = perf_counter_ns(), thread_time_ns()
        try:
            yield
        finally:
            self._wall_ns += perf_counter_ns() - wall
            self._own_ns += thread_time_ns() - own

    def take_share(self) -> float:
        """The share lost since it was last asked for."""
        share = 1 - self._own_ns / self._wall_ns if self._wall_ns else 0.0
        self._wall_ns = self._own_ns = 0
        return share
