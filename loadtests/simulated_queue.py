"""A simulated service of known speed: Poisson arrivals, one server, first come first served, bounded queue.

The unit of time is the mean time in service, so that 1 is the highest rate that can be served.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Values = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class SimulatedQueue:
    """Times in service are lognormal with this coefficient of `variation`; `bound` requests may wait."""

    variation: float = 0.15
    bound: int = 64


@dataclass(frozen=True, slots=True)
class SimulatedVisits:
    """Visits by rows, requests by columns: when they were due, their times in service, and latencies.

    A latency counts from when its request was due; NaN: refused.
    """

    due: Values
    service: Values
    latencies: Values

    @property
    def ended(self) -> Values:
        """When each request was answered; NaN where it was not."""
        return self.due + self.latencies


def simulated_visits(
    queue: SimulatedQueue, rates: Values, slowness: Values, requests: int, random: np.random.Generator
) -> SimulatedVisits:
    """One visit per rate, from an empty queue; its times in service are all `slowness` times as long."""
    gaps = random.exponential(1.0, (rates.size, requests)) / rates[:, None]
    gaps[:, 0] = 0.0
    spread = math.sqrt(math.log1p(queue.variation**2))
    drawn = np.exp(random.normal(-(spread**2) / 2, spread, (rates.size, requests)))
    due = np.cumsum(gaps, axis=1)
    service = slowness[:, None] * drawn
    return SimulatedVisits(due, service, _latencies(due, service, queue.bound))


def _latencies(due: Values, service: Values, bound: int) -> Values:
    """All visits side by side, request by request."""
    visits = np.arange(len(due))
    free = np.full(len(due), -np.inf)
    begins = np.full((len(due), bound), -np.inf)  # of the last requests that were accepted, in a ring
    accepted = np.zeros(len(due), dtype=int)
    latencies = np.full(due.shape, np.nan)
    for number in range(due.shape[1]):
        now, place = due[:, number], accepted % bound
        # As many as may wait do so where the one that came so many before has not begun.
        taken = begins[visits, place] <= now
        begin = np.maximum(now, free)
        end = begin + service[:, number]
        free = np.where(taken, end, free)
        begins[visits, place] = np.where(taken, begin, begins[visits, place])
        latencies[taken, number] = (end - now)[taken]
        accepted += taken
    return latencies
