"""A witness for the load generator and the queue's clock: the mean wait as measured, and as it has to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadtests.plan.cells import Cell
from loadtests.report.load.visits import Visit
from service.statistics.intervals import Interval, mean_interval
from service.statistics.queueing import pollaczek_khinchine


@dataclass(frozen=True, slots=True)
class Witness:
    """Mean waits in seconds, means over rounds.

    `replayed` follows from the instants at which the requests were sent and their own time in the service,
    for any arrivals; it does not know the queue's clock. It takes all of that time as the engine's, although
    the front works on one request while the engine serves another, and so reads a little high under load.
    `steady` is Pollaczek and Khinchine's, for Poisson arrivals below saturation after an infinite time: a
    visit, which starts empty, waits less. None where it does not apply: both where requests are merged.
    """

    measured: Interval
    replayed: Interval | None
    steady: Interval | None


def witness_of(cell: Cell, rate: float, visits: Sequence[Visit]) -> Witness | None:
    """The waits of `cell`; None where a visit has no answer or no time in the queue."""
    if not visits or any(not v.answers or np.isnan(v.queue_seconds).any() for v in visits):
        return None
    measured = mean_interval([float(visit.queue_seconds.mean()) for visit in visits])
    replayed = [visit.replayed_seconds for visit in visits if visit.replayed_seconds is not None]
    if len(replayed) < len(visits):
        return Witness(measured, None, None)
    return Witness(
        measured,
        mean_interval([float(waits.mean()) for waits in replayed]),
        _steady(cell, rate, visits),
    )


def _steady(cell: Cell, rate: float, visits: Sequence[Visit]) -> Interval | None:
    """From each round's service times; None for other arrivals, refused requests or a busy round."""
    if cell.arrivals != "poisson" or any(visit.cut or visit.rejected for visit in visits):
        return None
    waits = [pollaczek_khinchine(rate, visit.service_seconds.tolist()) for visit in visits]
    known = [wait for wait in waits if wait is not None]
    return mean_interval(known) if len(known) == len(waits) else None
