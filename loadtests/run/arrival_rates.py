"""The arrival rates of a plan's open-loop cells: given, shares of a capacity, or of what a search finds."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from loadtests.plan.cells import BASELINE, Cell
from loadtests.plan.rate_search import RateSearch, probe_of
from loadtests.plan.slo import Slo
from loadtests.run.assignment import Assignment, SearchEnded, SloSettled
from loadtests.run.open_loop import Search, SearchProbe
from loadtests.run.rows import RequestRow
from loadtests.run.slo_met import meets
from loadtests.run.visits import Visits
from service.statistics.visits import settling


class ArrivalRates:
    """Rates in requests per second, those of an earlier part first: a cell does not change its rate.

    `capacity` gives that of a cell's mode in requests per second, once warm-up is over.
    """

    def __init__(
        self,
        assignment: Assignment,
        visits: Visits,
        capacity: Callable[[Cell], float],
        emit: Callable[[SearchEnded | SloSettled], None],
    ) -> None:
        self._plan = assignment.plan
        self._slo = assignment.plan.slo
        self._visits = visits
        self._capacity = capacity
        self._emit = emit
        self._searches = list(assignment.searches)
        self._known = dict(assignment.rates)

    def settled(self) -> dict[str, float]:
        """The rate of each open-loop cell by name, after the searches that it takes.

        A cell is missing where the search found none: its mode misses the SLO even at the lowest rate.
        """
        self._settle_slo()
        for cell in self._plan.cells:
            if cell.open_loop and cell.name not in self._known:
                rate = self._rate(cell)
                if rate is not None:
                    self._known[cell.name] = rate
        return self._known

    def _settle_slo(self) -> None:
        """Know the SLO in seconds, by eager's latency at the end of warm-up. Later parts know it."""
        if self._slo is None or self._slo.is_settled:
            return
        eager = next(cell for cell in self._plan.cells if cell.open_loop and cell.mode == BASELINE)
        self._slo = self._slo.settled(1.0 / self._capacity(eager))
        self._emit(SloSettled(self._slo))

    def _rate(self, cell: Cell) -> float | None:
        if cell.load is None:
            return cell.rate
        if cell.share_of == "capacity":
            return cell.load * self._capacity(cell)
        found = self._found(cell)
        return None if found is None else cell.load * found

    def _found(self, cell: Cell) -> float | None:
        """The rate of the search that `cell` belongs to, which is made where it was not yet."""
        search = next((search for search in self._searches if search.of(cell)), None)
        if search is None:
            assert self._slo is not None, "a plan with a search has an SLO"
            search = self._search(cell, self._slo)
            self._searches.append(search)
            self._emit(SearchEnded(search))
        return search.rate

    def _search(self, cell: Cell, slo: Slo) -> Search:
        bisection = RateSearch(self._capacity(cell), slo.share)
        probes = []
        while (rate := bisection.next_rate()) is not None:
            probe = self._probe(probe_of(cell, rate, slo), rate, slo)
            bisection.add(rate, probe.met_share, probe.cut)
            probes.append(probe)
        return Search(
            mode=cell.mode,
            batch_size=cell.batch_size,
            prompt_set=cell.prompt_set,
            new_tokens=cell.new_tokens,
            arrivals=cell.arrivals,
            probes=probes,
            rate=bisection.rate,
        )

    def _probe(self, cell: Cell, rate: float, slo: Slo) -> SearchProbe:
        """Judged as a report does: without the first quarter, which finds an empty queue."""
        rows, cut = self._visits.probe(cell, rate)
        in_order = sorted((msgspec.convert(row, RequestRow) for row in rows), key=lambda row: row.index or 0)
        judged = in_order[settling(len(in_order)) :]
        met = sum(meets(slo, row) for row in judged)
        return SearchProbe(rate=rate, requests=len(rows), met_share=met / len(judged), cut=cut)
