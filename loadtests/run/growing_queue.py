"""When the queue of an open-loop visit only grows, judged by the number in flight at each of its arrivals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

STABLE = 0.9
"""The share of its capacity up to which a service keeps up; nearer to 1 no visit is long enough to tell."""

FALSE_CUTS = 0.003
"""Of visits at STABLE, as the bound below reckons; simulated, it is up to three times that and below 1 %."""

LEAST_ANSWERS = 8
"""Before so many answers a stall of the service looks like too high a rate of arrivals."""


class GrowingQueue:
    """Judges one visit of `requests` arrivals, of which at most `most_in_flight` can be in flight at once.

    The service works on up to k = `at_once` requests together.

    Within a busy period, one without an arrival that found fewer than k in flight, a service that takes the
    same time for each request answers k in that time. So m arrivals, during which c answers came, took less
    than (c + k) / k service times, whatever these are. Where arrivals are Poisson's, the log of the
    likelihood ratio of their most likely rate to that of a service in use for STABLE of its capacity is

        m ln(m / (STABLE (c + k))) - m + STABLE (c + k).

    The queue only grows where that exceeds the logarithm of the number of busy periods that the visit can
    have, over FALSE_CUTS: a union bound, for one rate instead of the most likely one, and so held against
    simulated queues in `tests/loadtests/test_growing_queue.py`. Equal gaps between arrivals, and refusals,
    only make it more reluctant.
    """

    def __init__(self, requests: int, most_in_flight: int, at_once: int = 1) -> None:
        busy_periods = max(1.0, (1 - STABLE) * requests)
        self._least_evidence = math.log(busy_periods / FALSE_CUTS)
        self._most_in_flight = most_in_flight
        self._at_once = at_once
        self._found_free = 0
        self._busy_arrivals = 0
        self.accepted = 0
        """Arrivals so far, without the one at which sending ends."""

    def arrival(self, in_flight: int) -> str | None:
        """Take in an arrival that finds so many in flight; the reason why neither it nor a later one is sent.

        None: it is sent.
        """
        if in_flight >= self._most_in_flight:
            return f"{in_flight} requests are in flight, as many as the load generator can have"
        if in_flight < self._at_once:
            self._busy_arrivals, self._found_free = 0, in_flight
        else:
            self._busy_arrivals += 1
        answers = self._found_free + self._busy_arrivals - in_flight
        if answers >= LEAST_ANSWERS and self._evidence(answers) > self._least_evidence:
            ratio = self._busy_arrivals / (answers + self._at_once)
            since = "empty" if self._at_once == 1 else "not full"
            return (
                f"the queue only grows: {in_flight} in flight, {self._busy_arrivals} arrivals and {answers} "
                f"answers since it was {since}, at least {ratio:.2f} times as fast as they are answered"
            )
        self.accepted += 1
        return None

    def _evidence(self, answers: int) -> float:
        arrivals, expected = self._busy_arrivals, STABLE * (answers + self._at_once)
        return arrivals * math.log(arrivals / expected) - arrivals + expected if arrivals > expected else 0.0


def rows_at_once(engine: Mapping[str, Any]) -> int:
    """The sequences that a service with such an `engine` runs together: 1 where it merges no requests."""
    if engine.get("batching", "off") == "off":
        return 1
    buckets: list[int] = engine.get("batch_buckets") or [1]
    return max(buckets)
