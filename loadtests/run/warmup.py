"""The end of warm-up: compile counters are flat and latency has no slope, or the passes are used up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from service.statistics.intervals import mean_interval

SLOPE_TOLERATED = 0.03
"""A mean fall below 3 % from one pass to the next is no slope, even where it is significant."""

SLOPE_CERTAIN = 0.10
"""A mean fall from 10 % on is a slope, however wide its interval: few cells scatter as much by chance."""


class WarmUp:
    """Judges passes over all cells, one request per cell and pass.

    Over after the first pass, from the `least`-th on, during which no compile counter moved and whose
    latencies are not lower than the pass before, by the mean of the per-cell log ratios (this pass over the
    one before) and its t interval: a fall below 3 % is no slope, one from 10 % on is, and one between is
    where the interval excludes 0. A rising latency does not prolong it: more passes would not lower it, and
    the control cell shows the drift. Ends unsettled after `most` passes.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._passes: list[Mapping[str, float]] = []
        self._counters: list[Mapping[str, float]] = []
        self.settled = False
        self.reason = "no pass yet"

    @property
    def passes(self) -> int:
        """Passes so far."""
        return len(self._passes)

    def add(self, latency_seconds: Mapping[str, float], counters: Mapping[str, float]) -> bool:
        """Add a pass: latency by cell that succeeded, compile counters after it. True: warm-up is over."""
        self._passes.append(latency_seconds)
        self._counters.append(counters)
        self.settled, self.reason = self._judge()
        return self.settled or self.passes >= self._most

    def _judge(self) -> tuple[bool, str]:
        if self.passes < max(2, self._least):
            return False, f"pass {self.passes} of at least {max(2, self._least)}"
        before, after = self._counters[-2:]
        if moved := sorted(name for name in after if after[name] != before.get(name, 0.0)):
            return False, f"still compiling: {', '.join(moved)} moved"
        return _has_no_slope(*self._passes[-2:])

    def latency_seconds(self, cells: Sequence[str]) -> float | None:
        """Median over the last two passes and `cells`; None where none of them succeeded."""
        values = sorted(one[cell] for one in self._passes[-2:] for cell in cells if cell in one)
        return values[len(values) // 2] if values else None


def _has_no_slope(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[bool, str]:
    changes = [math.log(after[cell] / before[cell]) for cell in after if cell in before]
    if not changes:
        return False, "no cell answered twice"
    change = mean_interval(changes)
    reason = f"latency {math.expm1(change.value):+.1%} from one pass to the next"
    fall = -math.expm1(change.value)
    sloping = fall >= SLOPE_CERTAIN or (fall > SLOPE_TOLERATED and change.high < 0)
    return not sloping, reason
