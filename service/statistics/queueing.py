"""What a queue with one server has to show, to check a measured wait against. Imports nothing of ours."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


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
