"""Dispatch floors: from samples, between two calibrated batches, and as a share of a CPU step."""

from __future__ import annotations

from collections.abc import Iterable

from service.protocol.status import Floor
from service.statistics.intervals import median_interval


def calibrated_floor(batch: int, samples_seconds: Iterable[float]) -> Floor:
    """The median of `samples_seconds` with its interval. Raises ValueError where there is no sample."""
    interval = median_interval(list(samples_seconds))
    return Floor(
        batch=batch,
        seconds=interval.value,
        low=interval.low,
        high=interval.high,
        samples=interval.samples,
        source="calibrated",
    )


def interpolated_floor(small: Floor, large: Floor, batch: int) -> Floor:
    """The floor at `batch`, linear in the batch; `small` or `large` itself where that is its batch.

    Raises ZeroDivisionError where both are of one other batch.
    """
    for end in (small, large):
        if end.batch == batch:
            return end
    share = (batch - small.batch) / (large.batch - small.batch)

    def between(low: float, high: float) -> float:
        return low + share * (high - low)

    return Floor(
        batch=batch,
        seconds=between(small.seconds, large.seconds),
        low=between(small.low, large.low),
        high=between(small.high, large.high),
        samples=min(small.samples, large.samples),
        source="interpolated",
    )


def dispatch_share(floor_seconds: float, steps: int, wall_seconds: float) -> float:
    """Dispatch seconds of `steps` steps on a CPU: `min(steps × floor, wall)`, a lower estimate."""
    return min(steps * floor_seconds, wall_seconds)
