"""The search for the highest arrival rate at which an SLO is met: which rates it probes, and how long."""

from __future__ import annotations

import math

import msgspec

from loadtests.plan.cells import Cell, Plan
from loadtests.plan.slo import Slo

PROBES = 8
"""Six halve the bracket to a fiftieth of the capacity; two are left for what has to be probed again."""

NEAR = 0.15
"""A share this little below the wanted one is probed again before it counts: one stall of the machine makes
so many requests miss, and a bisection does not come back from a wrong turn."""

LOWEST, HIGHEST = 0.1, 1.3
"""The bracket, as shares of the capacity. A mode that misses its SLO at a tenth is too slow for it; above 1 a
finite probe may still pass, because its queue begins empty."""

LEAST_REQUESTS, MOST_REQUESTS = 120, 200
"""Of 60, what is found lies between 0.6 and 1.8 times the knee, because one pattern of arrivals is short; of
120 between 0.65 and 1.5 (95 % of simulated searches). A ladder of loads has to be as wide."""

MISSES_ALLOWED = 3
"""A probe has as many requests as let so many of them miss, or one unlucky request would decide."""


class RateSearch:
    """Bisects between the ends of the bracket around `capacity` (requests per second), by PROBES probes.

    A probe meets the SLO where at least `share` of its requests do.
    """

    def __init__(self, capacity: float, share: float) -> None:
        self._low, self._high = LOWEST * capacity, HIGHEST * capacity
        self._share = share
        self._probes = 0
        self._again: float | None = None
        self._in_vain = False
        self.rate: float | None = None
        """The highest rate that was met; None: none was, not even the lower end."""

    def next_rate(self) -> float | None:
        """The rate to probe next; None: the search is over."""
        if self._probes == PROBES:
            return None
        if self.rate is None and (self._in_vain or self._probes == PROBES - 1):
            return self._low
        return self._again or (self._low + self._high) / 2

    def add(self, rate: float, met_share: float, cut: bool) -> None:
        """Take in a probe at the `next_rate`: the share that met the SLO, and whether its visit was cut."""
        self._probes += 1
        if self._in_vain and rate == self._low and (cut or met_share < self._share):
            self._probes = PROBES  # a lower rate is not asked for
        # Where no request was in time at all, the lowest rate comes next, and may save the others.
        self._in_vain = met_share == 0
        again, self._again = self._again, None
        if not cut and met_share >= self._share:
            self.rate = self._low = rate
        elif again is None and not cut and met_share >= self._share - NEAR:
            self._again = rate
        else:
            self._high = rate


def probe_requests(slo: Slo) -> int:
    """Requests of one probe: more for a stricter share, within bounds."""
    missing = 1 - slo.share
    wanted = math.ceil(MISSES_ALLOWED / missing) if missing > 0 else MOST_REQUESTS
    return min(MOST_REQUESTS, max(LEAST_REQUESTS, wanted))


def probe_of(cell: Cell, rate: float, slo: Slo) -> Cell:
    """The cell whose visit is one probe of the search that `cell` needs: its work at a rate of its own."""
    return msgspec.structs.replace(
        cell, load=None, share_of="capacity", rate=rate, requests=probe_requests(slo), control=False
    )


def searched(plan: Plan) -> list[Cell]:
    """One cell of each search that the plan needs: the first of those that differ in load only."""
    first: dict[tuple[object, ...], Cell] = {}
    for cell in plan.cells:
        if cell.share_of == "search":
            first.setdefault((cell.mode, cell.group[:-1], cell.arrivals), cell)
    return list(first.values())
