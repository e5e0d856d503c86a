"""What visits of an open-loop cell show of its rate.

A visit starts with an empty queue, so its first requests wait too little: they are sent and not judged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.special import stdtrit

from service.statistics.intervals import Interval

SETTLING_SHARE = 0.25
"""Of a visit's requests, the first, which fill the queue."""

KEEPING_UP_AFTER = 0.5
"""Where answers are compared with arrivals, as much is left out: a queue that still fills looks saturated."""


def settling(requests: int, share: float = SETTLING_SHARE) -> int:
    """How many of a visit's first requests are not judged; at least one, at most all but one."""
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

    In the long run 1 below saturation; in one visit it scatters around it, above 1 too.
    """
    answers, seconds = answered(due, ended, left_out)
    first = left_out - 1
    share = answers / (len(due) - 1 - first)
    return share * (due[-1] - due[first]) / seconds if seconds > 0 else 0.0


def rate_interval(counts: Sequence[int], seconds: Sequence[float], confidence: float = 0.95) -> Interval:
    """Events per second over visits: all of `counts` over all of `seconds`, with a t interval over visits.

    The ratio estimator of survey sampling (Cochran, Sampling Techniques, 1977, chapter 6): a mean of the
    visits' own rates would be too high, by one part in as many events as a visit has. Infinite ends below two
    visits. Raises ValueError without any second.
    """
    total = sum(seconds)
    if total <= 0:
        raise ValueError("a rate needs some seconds in which something could happen")
    rate, visits = sum(counts) / total, len(counts)
    if visits < 2:
        return Interval(rate, -math.inf, math.inf, visits)
    apart = sum((count - rate * own) ** 2 for count, own in zip(counts, seconds, strict=True))
    error = math.sqrt(visits / (visits - 1) * apart) / total
    half = float(stdtrit(visits - 1, 0.5 + confidence / 2)) * error
    return Interval(rate, rate - half, rate + half, visits)
