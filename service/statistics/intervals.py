"""A value with its interval, quantiles of requests in blocks, rates and their knee. Imports nothing of ours.

A block of an open-loop cell starts with an empty queue, so its first requests wait too little: they are sent
and not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Any

import numpy as np
from scipy.special import bdtr, ndtri, stdtrit


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its confidence interval [low, high] from `samples` observations; infinite ends: none."""

    value: float
    low: float
    high: float
    samples: int

    @property
    def excludes_one(self) -> bool:
        return self.low > 1.0 or self.high < 1.0


def named_fields(interval: Interval, value: str) -> dict[str, Any]:
    """Its fields, `value` the name of the first; an end that too few values leave open (infinite) is None."""
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    return {value: interval.value, "low": low, "high": high, "samples": interval.samples}


def t_quantile(freedom: float, probability: float) -> float:
    """Of Student's t, which is normal with infinite degrees of freedom."""
    return float(ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability))


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
    half = t_quantile(count - 1, 0.5 + confidence / 2) * stdev(values) / math.sqrt(count)
    return Interval(centre, centre - half, centre + half, count)


def exp(exponent: float) -> float:
    """Infinite beyond what a float holds."""
    return math.exp(exponent) if exponent < 700 else math.inf


def exponential(logs: Interval) -> Interval:
    """An interval of logarithms as one of ratios."""
    return Interval(exp(logs.value), exp(logs.low), exp(logs.high), logs.samples)


def geometric_mean(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """exp(mean ln v ± t(n − 1) · s / √n). Raises ValueError for values that are not positive, or none."""
    if any(value <= 0 for value in values):
        raise ValueError("a geometric mean needs positive values")
    return exponential(mean_interval([math.log(value) for value in values], confidence))


def paired_ratio(baseline: Sequence[float], candidate: Sequence[float], confidence: float = 0.95) -> Interval:
    """Speed-up `baseline / candidate` of paired durations: t interval on their log ratios.

    A value of 2: the candidate took half the baseline's time. A percentile bootstrap would cover too little
    with few pairs. Raises ValueError for unequal lengths or durations that are not positive.
    """
    pairs = list(zip(baseline, candidate, strict=True))
    if any(b <= 0 or c <= 0 for b, c in pairs):
        raise ValueError("a ratio of durations needs positive ones")
    return geometric_mean([b / c for b, c in pairs], confidence)


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
    smaller = min(map(len, sides))
    if smaller < 2:
        raise ValueError("an unpaired ratio needs at least two durations on either side")
    error, freedom = welch((variance(side) / len(side), len(side) - 1.0) for side in sides)
    half = t_quantile(freedom, 0.5 + confidence / 2) * error
    centre = fmean(sides[0]) - fmean(sides[1])
    return exponential(Interval(centre, centre - half, centre + half, smaller))


def welch(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """The standard error of a sum of independent estimates, each a variance with its degrees of freedom.

    With it the degrees of freedom by Satterthwaite; infinite where nothing scatters.
    """
    known = list(parts)
    total = sum(square for square, _ in known)
    shares = sum(square**2 / freedom for square, freedom in known)
    return math.sqrt(total), total**2 / shares if shares else math.inf


Values = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

TAIL_REQUESTS = 5
"""A quantile is shown where so many requests lie beyond it: p50 needs 10 requests, p90 50, p99 500."""


def least_requests(share: float) -> int:
    """How many requests, of all rounds together, a quantile at `share` needs."""
    return math.ceil(round(TAIL_REQUESTS / (1 - share), 6))


def quantile_interval(rounds: Sequence[Sequence[float] | Values], share: float) -> Interval | None:
    """The quantile at `share` of the requests of all rounds; None if infinite, or below `least_requests`.

    The queue couples the requests of a round, so only rounds are independent. The share of requests below the
    quantile is a ratio estimate over rounds with a 95 % t interval; its ends are read back as quantiles
    (Woodruff 1952). An end beyond all requests is infinite, as are both with one round.
    """
    kept = [np.asarray(values, dtype=float) for values in rounds if len(values)]
    if sum(values.size for values in kept) < least_requests(share):
        return None
    pooled = np.sort(np.concatenate(kept))
    value = _ranked(pooled, share)
    if math.isinf(value):
        return None
    if len(kept) < 2:
        return Interval(value, -math.inf, math.inf, len(kept))
    error = _share_error(kept, value)
    half = t_quantile(len(kept) - 1, 0.975) * error
    low, high = (_ranked(pooled, end) for end in (share - half, share + half))
    return Interval(value, min(low, value), max(high, value), len(kept))


def _share_error(rounds: Sequence[Values], value: float) -> float:
    """Standard error of the share of requests up to `value`, the rounds being the sampled units.

    Of requests that are equal to it, half count.
    """
    sizes = np.array([values.size for values in rounds], dtype=float)
    below = np.array(
        [np.count_nonzero(values < value) + np.count_nonzero(values <= value) for values in rounds]
    )
    apart = below / 2 - below.sum() / 2 / sizes.sum() * sizes
    count = len(rounds)
    return float(math.sqrt(count / (count - 1) * float(apart @ apart)) / sizes.sum())


def _ranked(ordered: Values, share: float) -> float:
    """The quantile at `share`; infinite outside of what was observed."""
    if share <= 0 or share >= 1:
        return -math.inf if share <= 0 else math.inf
    if math.isinf(ordered[math.ceil(share * (ordered.size - 1))]):
        return math.inf
    return float(np.quantile(ordered, share))


SETTLING_SHARE = 0.25
"""Of a block's requests, the first, which fill the queue."""

KEEPING_UP_AFTER = 0.5
"""Where answers are compared with arrivals, as much is left out: a queue that still fills looks saturated."""


def settling(requests: int, share: float = SETTLING_SHARE) -> int:
    """How many of a block's first requests are not judged; at least one, at most all but one."""
    return min(max(1, round(share * requests)), max(0, requests - 1))


def answered(due: Sequence[float], ended: Sequence[float | None], left_out: int) -> tuple[int, float]:
    """Answers from the last of the first `left_out` requests on, and the seconds in which they came.

    `due` ascends; `ended` is when each was answered, None where it was not. Raises ValueError where none or
    all are left out.
    """
    if not 0 < left_out < len(due):
        raise ValueError(f"of {len(due)} requests {left_out} cannot be left out: send at least two")
    first = left_out - 1
    before = [end for end in ended[: first + 1] if end is not None]
    after = [end for end in ended[first + 1 :] if end is not None]
    return len(after), max(after) - max(before, default=due[first]) if after else 0.0


def served_share(due: Sequence[float], ended: Sequence[float | None], left_out: int) -> float:
    """Rate of the answers over the rate offered, as `answered` counts them.

    In the long run 1 below saturation; in one block it scatters around it, above 1 too.
    """
    answers, seconds = answered(due, ended, left_out)
    first = left_out - 1
    share = answers / (len(due) - 1 - first)
    return share * (due[-1] - due[first]) / seconds if seconds > 0 else 0.0


def rate_interval(counts: Sequence[int], seconds: Sequence[float], confidence: float = 0.95) -> Interval:
    """Events per second over blocks: all of `counts` over all of `seconds`, with a t interval over blocks.

    The ratio estimator of survey sampling (Cochran, Sampling Techniques, 1977, chapter 6): a mean of the
    blocks' own rates would be too high, by one part in as many events as a block has. Infinite ends below two
    blocks. Raises ValueError without any second.
    """
    total = sum(seconds)
    if total <= 0:
        raise ValueError("a rate needs some seconds in which something could happen")
    rate, blocks = sum(counts) / total, len(counts)
    if blocks < 2:
        return Interval(rate, -math.inf, math.inf, blocks)
    apart = sum((count - rate * own) ** 2 for count, own in zip(counts, seconds, strict=True))
    error = math.sqrt(blocks / (blocks - 1) * apart) / total
    half = t_quantile(blocks - 1, 0.5 + confidence / 2) * error
    return Interval(rate, rate - half, rate + half, blocks)


# The knee: the highest arrival rate at which enough requests are served. A ladder of rates that does not
# enclose it says only on which side of it the knee lies: it is a pair of bounds, its interval may be open.

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
