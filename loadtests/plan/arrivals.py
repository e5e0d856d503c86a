"""When the requests of an open-loop cell are due: fixed beforehand, whatever the responses do.

A closed loop sends its next request only after a response and so hides the server's stalls.
"""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Literal

Arrivals = Literal["poisson", "constant"]
"""`poisson`: gaps are exponential, as of many clients that know nothing of each other; `constant`: equal."""


def due_times(arrivals: Arrivals, rate_per_second: float, count: int, seed: str) -> list[float]:
    """Due times in seconds of `count` arrivals, the first at 0. Raises ValueError as `poisson` does."""
    if arrivals == "poisson":
        return poisson(rate_per_second, count, seed)
    return constant(rate_per_second, count)


def poisson(rate_per_second: float, count: int, seed: str) -> list[float]:
    """Due times in seconds from the first arrival at 0: `count` arrivals with exponential gaps.

    Of one seed, the times at another rate are the same ones on another scale. Raises ValueError for a rate
    that is not positive.
    """
    random = Random(f"arrivals/{seed}")
    gaps = (random.expovariate(_positive(rate_per_second)) for _ in range(count - 1))
    return list(accumulate(gaps, initial=0.0))


def constant(rate_per_second: float, count: int) -> list[float]:
    """Due times in seconds of `count` arrivals at equal gaps, as `poisson`; its seed would change nothing."""
    return [number / _positive(rate_per_second) for number in range(count)]


def _positive(rate_per_second: float) -> float:
    if rate_per_second <= 0:
        raise ValueError(f"an arrival rate is positive, got {rate_per_second}")
    return rate_per_second
