"""A value with its interval: statistics shared by the service and its load tests. Imports nothing of ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from scipy.special import bdtr, stdtrit


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its confidence interval [low, high] from `samples` observations; infinite ends: none."""

    value: float
    low: float
    high: float
    samples: int

    @property
    def excludes_one(self) -> bool:
        """Whether a ratio of 1 (no difference) lies outside the interval."""
        return self.low > 1.0 or self.high < 1.0


def as_json(interval: Interval) -> dict[str, float | int | None]:
    """Its fields; an end that too few values leave open (infinite) is None."""
    return {
        name: value if math.isfinite(value) else None
        for name, value in (
            ("value", interval.value),
            ("low", interval.low),
            ("high", interval.high),
            ("samples", interval.samples),
        )
    }


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of `values` with Student's t interval; infinite below two values.

    Raises ValueError where there is no value at all.
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    count = len(values)
    centre = fmean(values)
    if count < 2:
        return Interval(centre, -math.inf, math.inf, count)
    half = float(stdtrit(count - 1, 0.5 + confidence / 2)) * stdev(values) / math.sqrt(count)
    return Interval(centre, centre - half, centre + half, count)


def paired_ratio(baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> Interval:
    """Speed-up `baseline / candidate` of paired durations: t interval on their log ratios.

    A value of 2: the candidate took half the baseline's time. A percentile bootstrap would cover too little
    with few pairs. Raises ValueError for unequal lengths or durations that are not
    positive.
    """
    pairs = list(zip(baseline, candidate, strict=True))
    if any(b <= 0 or c <= 0 for b, c in pairs):
        raise ValueError("a ratio of durations needs positive ones")
    logs = [math.log(b / c) for b, c in pairs]
    interval = mean_interval(logs, confidence)
    high = math.exp(interval.high) if interval.high < 700 else math.inf
    return Interval(math.exp(interval.value), math.exp(interval.low), high, interval.samples)


def median_interval(values: Sequence[float]) -> Interval:
    """Median with the narrowest symmetric order-statistic interval that covers at least 95 %.

    Its coverage is binomial, whatever the distribution's shape; with fewer than six values no such interval
    is wide enough, and it is infinite. Raises ValueError where there is no value.
    """
    if not values:
        raise ValueError("a median needs at least one value")
    count = len(values)
    ordered = sorted(values)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    # The median lies below the k-th smallest value with the chance of fewer than k values below it.
    rank = max((k for k in range(1, count // 2 + 1) if bdtr(k - 1, count, 0.5) <= 0.025), default=0)
    if rank == 0:
        return Interval(middle, -math.inf, math.inf, count)
    return Interval(middle, ordered[rank - 1], ordered[count - rank], count)


def unpaired_ratio(
    baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95
) -> Interval:
    """Speed-up `baseline / candidate` of the geometric means of two independent sets of durations.

    Welch's t interval on the logarithms. `samples` is the smaller set's size. Raises ValueError below two
    values on either side.
    """
    sides = [[math.log(value) for value in values] for values in (baseline, candidate)]
    if min(map(len, sides)) < 2:
        raise ValueError("an unpaired ratio needs at least two durations on either side")
    errors = [stdev(side) ** 2 / len(side) for side in sides]
    centre = fmean(sides[0]) - fmean(sides[1])
    total = sum(errors)
    if total == 0:
        return Interval(math.exp(centre), math.exp(centre), math.exp(centre), min(map(len, sides)))
    freedom = total**2 / sum(error**2 / (len(side) - 1) for error, side in zip(errors, sides, strict=True))
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * math.sqrt(total)
    return Interval(math.exp(centre), math.exp(centre - half), math.exp(centre + half), min(map(len, sides)))
