"""A quantile of requests that come in visits, with an interval over rounds. Imports nothing else of ours."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from service.statistics.intervals import Interval

Values = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

TAIL_REQUESTS = 5
"""A quantile is said where so many requests lie beyond it: p50 needs 10 requests, p90 50, p99 500."""


def least_requests(share: float) -> int:
    """How many requests, of all rounds together, a quantile at `share` needs."""
    return math.ceil(round(TAIL_REQUESTS / (1 - share), 6))


def quantile_interval(
    rounds: Sequence[Sequence[float] | Values], share: float, confidence: float = 0.95
) -> Interval | None:
    """The quantile at `share` of the requests of all rounds; None if infinite, or below `least_requests`.

    The queue couples the requests of a round, so only rounds are independent. The share of requests below the
    quantile is a ratio estimate over rounds with a t interval; its ends are read back as quantiles (Woodruff
    1952). An end beyond all requests is infinite, as are both with one round.
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
    half = float(stdtrit(len(kept) - 1, 0.5 + confidence / 2)) * error
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
