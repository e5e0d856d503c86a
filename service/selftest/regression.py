"""A straight line through a few points: what is left of a step's time where its work is none."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import linear_regression


def intercept(work: Sequence[float], seconds: Sequence[float]) -> float:
    """Ordinary least squares' value at no work.

    Raises statistics.StatisticsError for fewer than two points or work that is the same everywhere.
    """
    return linear_regression(work, seconds).intercept


def curvature(work: Sequence[float], seconds: Sequence[float]) -> float:
    """How badly a line fits: the largest residual as a share of the largest value."""
    line = linear_regression(work, seconds)
    residuals = (y - line.slope * x - line.intercept for x, y in zip(work, seconds, strict=True))
    return max(map(abs, residuals)) / max(seconds)
