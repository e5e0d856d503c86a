"""How much of its cores others took from a check while it measured: a failure then decides nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns

import msgspec

from service.selftest.rows import CheckResult

MOST_SHARE = 0.02
"""Alone on its core, a check loses well under one percent, to the kernel's own ticks and threads."""


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

    def excuse(self, rows: list[CheckResult]) -> list[CheckResult]:
        """`rows`, failures made undecided where too much was lost; passes stand, as noise does not help."""
        share = self.take_share()
        return [_excused(row, share) for row in rows] if share > MOST_SHARE else rows


def _excused(row: CheckResult, share: float) -> CheckResult:
    if row.verdict != "fail" or row.low == row.high:
        return row
    note = f"others took {share:.0%} of the core meanwhile; {row.note}".rstrip("; ")
    return msgspec.structs.replace(row, verdict="undecided", note=note)
