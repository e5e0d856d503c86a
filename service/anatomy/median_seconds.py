"""An interval of seconds under the key names that `operators` and `probes` findings have over HTTP."""

from __future__ import annotations

import math

import msgspec

from service.statistics.intervals import Interval


class MedianSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Median of `samples` with its 95 % bounds, in seconds; None where there were too few for an interval."""

    median_seconds: float
    low: float | None
    high: float | None
    samples: int

    @classmethod
    def of(cls, interval: Interval) -> MedianSeconds:
        """`interval` with its infinite bounds as None."""
        return cls(
            median_seconds=interval.value,
            low=finite(interval.low),
            high=finite(interval.high),
            samples=interval.samples,
        )


def finite(bound: float) -> float | None:
    """`bound`, or None for an infinite one."""
    return bound if math.isfinite(bound) else None
