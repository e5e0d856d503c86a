"""The knee: the highest arrival rate at which enough requests are served, with its interval over rounds.

A ladder of rates that does not enclose the knee says only on which side of it the knee lies, so a knee is a
pair of bounds and its interval may be open. Imports nothing else of ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from scipy.special import expit, logit, stdtrit

from service.statistics.intervals import mean_interval

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


def met_point(rate: float, shares: Sequence[float], requests: int, confidence: float = 0.95) -> RatePoint:
    """From the share of requests in time of each round's visit, with `requests` judged in each.

    A t interval over rounds on the logit of their mean, with one request more on either side; its variance is
    at least that of independent requests, because rounds that all read 100 % do not prove 100 %. Raises
    ValueError without a round.
    """
    share, count = fmean(shares), len(shares)
    if count < 2:
        return RatePoint(rate, share, 0.0, 1.0, requests * count)
    centre = (share * requests * count + 1) / (requests * count + 2)
    scatter = max(variance(shares), centre * (1 - centre) / requests)
    error = math.sqrt(scatter / count) / (centre * (1 - centre))
    half = float(stdtrit(count - 1, 0.5 + confidence / 2)) * error
    low, high = (float(expit(logit(centre) + end)) for end in (-half, half))
    return RatePoint(rate, share, min(low, share), max(high, share), requests * count)


def kept_up_point(rate: float, ratios: Sequence[float], requests: int, confidence: float = 0.95) -> RatePoint:
    """From the served over the offered rate of each round's visit, which scatters around 1: a t interval.

    Raises ValueError without a round.
    """
    interval = mean_interval(ratios, confidence)
    return RatePoint(rate, interval.value, interval.low, interval.high, requests * len(ratios))


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


def knee_ratio(first: BoundedEstimate, second: BoundedEstimate) -> BoundedEstimate:
    """`second` over `first`; a bound of either bounds the ratio, and an open end opens it.

    Its interval recovers the errors of both logarithms from their own intervals and adds them as squares
    (MOVER; Donner and Zou 2012), as if they were independent: what the modes share of a round makes it wider
    than it had to be. Where a knee is only bounded the intervals' ends are divided, which is wider still.
    """
    one, other = first.value, second.value
    value = Bounds(_over(other.low, one.high), _over(other.high, one.low))
    if not (one.known and other.known):
        low, high = _over(second.low, first.high), _over(second.high, first.low)
        return BoundedEstimate(value, min(low, value.low), max(high, value.high))
    below = math.hypot(_log(_over(other.low, second.low)), _log(_over(first.high, one.low)))
    above = math.hypot(_log(_over(second.high, other.low)), _log(_over(one.low, first.low)))
    return BoundedEstimate(value, value.low * math.exp(-below), value.low * _exp(above))


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


def _over(numerator: float, denominator: float) -> float:
    """A ratio of bounds; infinite over 0, 0 over infinity."""
    if denominator == 0:
        return math.inf
    return 0.0 if math.isinf(denominator) else numerator / denominator


def _log(ratio: float) -> float:
    return math.inf if math.isinf(ratio) else math.log(ratio)


def _exp(logarithm: float) -> float:
    return math.exp(logarithm) if logarithm < 700 else math.inf


def pollaczek_khinchine(rate: float, service_seconds: Sequence[float]) -> float | None:
    """Mean wait in seconds of an M/G/1 queue in its steady state: λ · E[S²] / (2 · (1 − λ · E[S])).

    Poisson arrivals at `rate` per second, served one at a time in their order (Pollaczek 1930, Khinchine
    1932). None where the server is busy all the time (λ · E[S] ≥ 1): then there is no steady state.
    """
    busy = rate * fmean(service_seconds)
    if busy >= 1:
        return None
    return rate * fmean([seconds**2 for seconds in service_seconds]) / (2 * (1 - busy))


def replayed_waits(arrivals: Sequence[float], service_seconds: Sequence[float]) -> list[float]:
    """The wait of each request, from the instants of arrival and the times in service alone.

    Lindley's recursion: the server is idle at first and takes one request at a time in their order. Exact for
    any arrivals, from an empty queue, and past saturation. `arrivals` ascend. Raises ValueError for unequal
    lengths.
    """
    waits = []
    free = float("-inf")
    for arrival, service in zip(arrivals, service_seconds, strict=True):
        begin = max(arrival, free)
        waits.append(begin - arrival)
        free = begin + service
    return waits
