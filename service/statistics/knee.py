"""The knee: the highest arrival rate at which enough requests are served, with its interval over rounds.

A ladder of rates that does not enclose the knee says only on which side of it the knee lies, so a knee is a
pair of bounds and its interval may be open. Imports nothing else of ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SERVED_SHARE = 0.98
"""Without an objective, a rate counts as served where answers leave at this share of the rate offered."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """A quantity known to lie in [low, high]: equal where it was measured, 0 or infinite where unbounded."""

    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether it was measured, not only bounded."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class BoundedEstimate:
    """A value that may be only bounded, and its confidence interval; 0 and infinity are open ends."""

    value: Bounds
    low: float
    high: float

    @property
    def tells(self) -> bool:
        """Whether its interval excludes anything; the value means nothing where it does not."""
        return self.low > 0 or math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """What was served of an arrival rate: a share with its interval, of so many `requests` in all rounds."""

    rate: float
    share: float
    low: float
    high: float
    requests: int


def knee(points: Sequence[RatePoint], least_share: float) -> BoundedEstimate:
    """The rate at which the served share falls below `least_share`, from one point per rate.

    The shares are made to fall with the rate (isotonic regression, weighted by requests), and the knee is
    interpolated linearly between the two rates around the crossing. All served: at least the highest rate;
    the lowest not served: below it. Nothing is extrapolated. The interval has all rates that the data do not
    exclude: it goes from where the shares' lower ends cross to where the upper ends do. Raises ValueError
    without a point.
    """
    if not points:
        raise ValueError("a knee needs at least one rate")
    ordered = sorted(points, key=lambda point: point.rate)
    rates, weights = [point.rate for point in ordered], [point.requests for point in ordered]
    value, low, high = (
        _crossing(rates, _falling(shares, weights), least_share)
        for shares in zip(*((point.share, point.low, point.high) for point in ordered), strict=True)
    )
    return BoundedEstimate(value, low.low, high.high)


def _falling(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    from scipy.optimize import isotonic_regression  # where there are knees: its import takes long

    return [float(value) for value in isotonic_regression(values, weights=weights, increasing=False).x]


def _crossing(rates: Sequence[float], shares: Sequence[float], least_share: float) -> Bounds:
    served = sum(share >= least_share for share in shares)
    if served == 0:
        return Bounds(0.0, rates[0])
    if served == len(rates):
        return Bounds(rates[-1], math.inf)
    below, above = shares[served - 1], shares[served]
    part = 0.0 if math.isinf(above) else (below - least_share) / (below - above)
    if math.isinf(below):
        part = 1.0
    rate = rates[served - 1] + part * (rates[served] - rates[served - 1])
    return Bounds(rate, rate)
