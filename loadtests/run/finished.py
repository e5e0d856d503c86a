"""Which requests of a plan have a row, and which the plan still owes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from loadtests.plan.cells import Cell, Plan
from loadtests.run.decisions import Latencies, rounds
from loadtests.run.open_loop import CutVisit, Search
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun


class Finished:
    """The measured requests that have a row, failed ones too, by round and cell.

    Not owed are the requests that `cut_visits` did not send, and cells whose search found no rate.
    """

    def __init__(
        self,
        rows: Iterable[RequestRow] = (),
        cut_visits: Iterable[CutVisit] = (),
        searches: Iterable[Search] = (),
    ) -> None:
        self._sent = {(cut.round, cut.cell): cut.sent for cut in cut_visits}
        self._fruitless = [search for search in searches if search.rate is None]
        self._visits: dict[tuple[int, str], list[RequestRow]] = defaultdict(list)
        for row in rows:
            if row.stage == "measure":
                self._visits[row.round, row.cell].append(row)

    def of(self, number: int, cell: Cell) -> list[RequestRow]:
        """The rows of `cell` in round `number`."""
        return self._visits.get((number, cell.name), [])

    def owed(self, number: int, cell: Cell) -> int:
        """How many requests of `cell` the plan has in round `number`, those with a row too."""
        if any(search.of(cell) for search in self._fruitless):
            return 0
        return self._sent.get((number, cell.name), cell.requests)

    def missing(self, number: int, cell: Cell) -> list[int]:
        """The indexes of the requests of `cell` in round `number` that have no row."""
        indexes = [row.index for row in self.of(number, cell)]
        if None in indexes:  # rows of before they had an index
            return list(range(len(indexes), self.owed(number, cell)))
        return sorted(set(range(self.owed(number, cell))).difference(indexes))


def first_missing(
    plan: Plan,
    rows: Sequence[RequestRow],
    cut_visits: Iterable[CutVisit] = (),
    searches: Iterable[Search] = (),
) -> tuple[int, Cell] | None:
    """The first round and cell that the plan owes a request; None where it was run to its end.

    Which rounds the plan has depends on its looks: they are taken again, from the rows.
    """
    finished = Finished(rows, cut_visits, searches)
    latencies = Latencies()
    for number, cells in rounds(plan, latencies, lambda _: None):
        for cell in cells:
            if finished.missing(number, cell):
                return number, cell
            latencies.add_rows(finished.of(number, cell))
    return None


def is_whole(run: SweepRun, rows: Sequence[RequestRow]) -> bool:
    """Whether `rows` are all that the plan of `run` owes."""
    return first_missing(run.plan, rows, run.cut_visits, run.searches) is None
