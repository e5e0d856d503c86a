"""When the requests of an open-loop cell are due: a Poisson process that does not depend on responses."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import Literal

Arrivals = Literal["poisson", "constant"]
"""How the gaps between arrivals are drawn: exponential, or all equal."""


def poisson(rate_per_second: float, count: int, seed: str) -> list[float]:
    """Due times in seconds from the first arrival at 0: `count` arrivals with exponential gaps.

    A closed loop sends its next request only after a response and so hides the server's stalls; arrivals
    that are fixed beforehand do not. Raises ValueError for a rate that is not positive.
    """
    if rate_per_second <= 0:
        raise ValueError(f"an arrival rate is positive, got {rate_per_second}")
    random = Random(f"arrivals/{seed}")
    return list(accumulate((random.expovariate(rate_per_second) for _ in range(count - 1)), initial=0.0))
