"""From a few fleets to a large one: a line through what was read, and Prometheus' rules of thumb."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, linear_regression

from scipy import stats

ADDED_PER_TARGET = 5
"""`up` and four `scrape_*` series that Prometheus itself writes for each target."""

BYTES_PER_SERIES = 3000
"""Memory per series in the head: "a good rule of thumb should be around 3kB" (robustperception.io, "Why does
Prometheus use so much RAM?", of Prometheus 2.20)."""

BYTES_PER_SAMPLE = (1, 2)
"""On disk: "an average of only 1-2 bytes per sample" (prometheus.io, Storage, Operational aspects)."""


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line through at least three points, with what its prediction intervals need."""

    intercept: float
    slope: float
    count: int
    mean_x: float
    spread_x: float
    residual: float

    def at(self, x: float) -> tuple[float, float, float]:
        """The value at `x`, and the 95 % interval in which one more point there is expected.

        Normal errors of equal size are assumed, and that the line goes on as it began.
        """
        value = self.intercept + self.slope * x
        error = self.residual * sqrt(1 + 1 / self.count + (x - self.mean_x) ** 2 / self.spread_x)
        half = float(stats.t.ppf(0.975, self.count - 2)) * error
        return value, value - half, value + half


def fitted(xs: Sequence[float], ys: Sequence[float]) -> Line:
    """The line of `ys` over `xs`. Raises ValueError below three points: two leave nothing to judge it by."""
    if len(xs) < 3:
        raise ValueError(f"a line with an interval needs three points, got {len(xs)}: name more fleets")
    slope, intercept = linear_regression(xs, ys)
    mean = fmean(xs)
    squares = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    spread = sum((x - mean) ** 2 for x in xs)
    return Line(intercept, slope, len(xs), mean, spread, sqrt(squares / (len(xs) - 2)))


@dataclass(frozen=True, slots=True)
class OnPaper:
    """What a fleet asks of one Prometheus by the rules of thumb."""

    series: int
    samples_per_second: float
    head_bytes: int
    disk_bytes: tuple[float, float]


def on_paper(
    series_per_replica: int, replicas: int, interval_seconds: float, retention_days: float
) -> OnPaper:
    """The rules of thumb for `replicas` that each show `series_per_replica`."""
    series = replicas * (series_per_replica + ADDED_PER_TARGET)
    samples = series / interval_seconds
    low, high = (samples * retention_days * 86400 * size for size in BYTES_PER_SAMPLE)
    return OnPaper(series, samples, series * BYTES_PER_SERIES, (low, high))
