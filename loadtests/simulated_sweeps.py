"""Sweeps of a simulated queue: the knee that a report would say of one, and the true one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

import numpy as np

from loadtests.simulated_queue import SimulatedQueue, SimulatedVisits, Values, simulated_visits
from service.statistics.knee import SERVED_SHARE, BoundedEstimate, kept_up_point, knee, met_point
from service.statistics.visits import KEEPING_UP_AFTER, served_share, settling

ROUND_SCATTER = 0.02
"""Of the machine's speed, as a standard deviation of logarithms: what all visits of a round share."""

VISIT_SCATTER = 0.02
"""What each visit has for itself."""

LONG = 4000
"""Requests of a visit that is as good as endless; its first quarter is left out as well."""


@dataclass(frozen=True, slots=True)
class LoadSweep:
    """A sweep of one mode over a ladder of `rates`; `limit` is its objective in times in service.

    None: no objective, the rate at which answers no longer keep up is looked for.
    """

    rates: tuple[float, ...]
    limit: float | None = 6.0
    share: float = 0.95
    requests: int = 100
    rounds: int = 8
    queue: SimulatedQueue = field(default_factory=SimulatedQueue)


def knees(
    sweep: LoadSweep, speed: float, round_slowness: Values, random: np.random.Generator
) -> BoundedEstimate:
    """The knee that a report would say, of a mode `speed` times as fast whose ladder is as much higher."""
    rates = np.repeat(sweep.rates, sweep.rounds)
    own = np.exp(random.normal(0, VISIT_SCATTER, rates.size))
    slowness = np.tile(round_slowness, len(sweep.rates)) * own
    # Time is counted in this mode's own times in service.
    visits = simulated_visits(sweep.queue, rates, slowness, sweep.requests, random)
    shares = np.reshape(_shares(visits, sweep.limit), (len(sweep.rates), sweep.rounds)).tolist()
    judged = sweep.requests - settling(sweep.requests)
    point = kept_up_point if sweep.limit is None else met_point
    found = [point(rate * speed, own, judged) for rate, own in zip(sweep.rates, shares, strict=True)]
    return knee(found, SERVED_SHARE if sweep.limit is None else sweep.share)


def _shares(visits: SimulatedVisits, limit: float | None) -> list[float]:
    if limit is not None:
        judged = visits.latencies[:, settling(visits.latencies.shape[1]) :]
        return [float(share) for share in np.mean(judged <= limit, axis=1)]
    left_out = settling(visits.due.shape[1], KEEPING_UP_AFTER)
    return [
        served_share(due.tolist(), [None if np.isnan(end) else float(end) for end in ended], left_out)
        for due, ended in zip(visits.due, visits.ended, strict=True)
    ]


@cache
def true_knee(sweep: LoadSweep) -> float:
    """The rate at which an endless visit has `share` of its requests within the limit, by bisection."""
    if sweep.limit is None:
        return 1 / SERVED_SHARE
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        visits = simulated_visits(
            sweep.queue, np.full(200, middle), np.ones(200), LONG, np.random.default_rng(1)
        )
        met = float(np.mean(visits.latencies[:, settling(LONG) :] <= sweep.limit))
        low, high = (middle, high) if met >= sweep.share else (low, middle)
    return (low + high) / 2
