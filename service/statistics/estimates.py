"""Dispatch as an interval, and the device-bound index that follows from it.

Imports nothing of ours but the other statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.statistics.intervals import Interval, mean_interval


@dataclass(frozen=True, slots=True)
class Split:
    """Dispatch and kernel of the same steps, in seconds; [low, high] is the interval of the dispatch.

    Where dispatch is estimated, kernel is what it leaves of the wall time: their sum is exact, and what one
    has more the other has less. Measured dispatch has low = high = dispatch.
    """

    dispatch: float
    kernel: float
    low: float
    high: float

    def index_at(self, dispatch: float) -> float:
        """The device-bound index if dispatch was `dispatch`: 1 − dispatch / (sum of both), in [0, 1]."""
        return min(1.0, max(0.0, 1.0 - dispatch / (self.dispatch + self.kernel)))

    @property
    def index(self) -> float:
        """Kernel / (kernel + dispatch)."""
        return self.index_at(self.dispatch)


def total(splits: Sequence[Split]) -> Split:
    """The sum of `splits`; the ends add up too, because an estimate's error is shared by all of them."""
    return Split(
        dispatch=sum(split.dispatch for split in splits),
        kernel=sum(split.kernel for split in splits),
        low=sum(split.low for split in splits),
        high=sum(split.high for split in splits),
    )


def index_interval(rounds: Sequence[Split]) -> Interval | None:
    """The device-bound index of the sums over `rounds`, with an interval that spans both of its errors.

    With h the half width of the t interval of the rounds' indices, it is [index at dispatch's high end − h,
    index at its low end + h], cut to [0, 1]. The two are added, not combined as squares: the estimate's error
    is the same in every round and does not average out. All of [0, 1] with a single round. None without
    rounds, or where nothing was measured in one.
    """
    if not rounds or any(split.dispatch + split.kernel <= 0 for split in rounds):
        return None
    spread = mean_interval([split.index for split in rounds])
    half = spread.high - spread.value
    both = total(rounds)
    low, high = both.index_at(both.high) - half, both.index_at(both.low) + half
    return Interval(both.index, max(0.0, low), min(1.0, high), len(rounds))
