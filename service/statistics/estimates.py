"""Dispatch as an interval, and the device-bound index that follows from it.

Imports nothing of ours but the other statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.statistics.intervals import Interval, mean_interval
from service.statistics.sampled_share import dispatch_share


@dataclass(frozen=True, slots=True)
class Split:
    """Dispatch and kernel of the same steps, in seconds; [low, high] is the interval of the dispatch.

    Where dispatch is estimated, kernel is what it leaves of the wall time: their sum is exact, and what one
    has more the other has less. Measured dispatch has low = high = dispatch. `samples`: of kernels, of the
    host, and unclassified, where dispatch was estimated from samples of these very steps.
    """

    dispatch: float
    kernel: float
    low: float
    high: float
    samples: tuple[int, int, int] | None = None

    def index_at(self, dispatch: float) -> float:
        """The device-bound index if dispatch was `dispatch`: 1 − dispatch / (sum of both), in [0, 1]."""
        return min(1.0, max(0.0, 1.0 - dispatch / (self.dispatch + self.kernel)))

    @property
    def index(self) -> float:
        """Kernel / (kernel + dispatch)."""
        return self.index_at(self.dispatch)

    @property
    def index_ends(self) -> tuple[float, float]:
        """The interval of the index: by all samples together, else by dispatch's own ends."""
        share = dispatch_share(*self.samples) if self.samples else None
        if share is None:
            return self.index_at(self.high), self.index_at(self.low)
        # By time the index is not quite that of the samples, as some steps have fewer for their length.
        return min(1 - share.high, self.index), max(1 - share.low, self.index)


def total(splits: Sequence[Split]) -> Split:
    """The sum of `splits`; the ends add up too, because an estimate's error is shared by all of them.

    The error of counting samples is not, so these are added as well, where all have some.
    """
    counts = [split.samples for split in splits if split.samples is not None]
    kernel, host, unclassified = (sum(count[side] for count in counts) for side in range(3))
    return Split(
        dispatch=sum(split.dispatch for split in splits),
        kernel=sum(split.kernel for split in splits),
        low=sum(split.low for split in splits),
        high=sum(split.high for split in splits),
        samples=(kernel, host, unclassified) if counts and len(counts) == len(splits) else None,
    )


def index_interval(rounds: Sequence[Split], least: float = 0.0) -> Interval | None:
    """The device-bound index of the sums over `rounds`, with an interval that spans both of its errors.

    With h the half width of the t interval of the rounds' indices, and at least `least`, it is [index at
    dispatch's high end − h, index at its low end + h], cut to [0, 1]. The two are added, not combined as
    squares: the estimate's error is the same in every round and does not average out. All of [0, 1] with a
    single round. None without rounds, or where nothing was measured in one.
    """
    if not rounds or any(split.dispatch + split.kernel <= 0 for split in rounds):
        return None
    spread = mean_interval([split.index for split in rounds])
    half = max(least, spread.high - spread.value)
    both = total(rounds)
    low, high = both.index_at(both.high) - half, both.index_at(both.low) + half
    return Interval(both.index, max(0.0, low), min(1.0, high), len(rounds))
