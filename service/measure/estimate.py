"""A duration as it leaves: the median of repeats and its 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from service.statistics.intervals import median_interval


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. `low` and `high` are None where there were too few samples for an interval."""

    median_seconds: float
    low: float | None
    high: float | None
    samples: int


def estimate(seconds: Sequence[float]) -> Estimate:
    """The median of `seconds` with its order-statistic interval. Raises ValueError where there is none."""
    found = median_interval(seconds)
    return Estimate(
        median_seconds=found.value, low=_finite(found.low), high=_finite(found.high), samples=found.samples
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
