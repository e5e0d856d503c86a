"""Which requests of a plan have a row, and which the plan still owes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from loadtests.plan.cells import Cell, Plan
from loadtests.run.decisions import Latencies, rounds
from loadtests.run.open_loop import CutVisit
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun


class _Visit:
    """The indexes of a visit's requests that have a row, and the latencies of those that count."""

    __slots__ = ("indexes", "latencies", "unnumbered")

    def __init__(self) -> None:
        self.indexes = array("q")
        self.latencies = array("d")
        self.unnumbered = 0


_EMPTY = _Visit()


class Finished:
    """The measured requests that have a row, failed ones too: by round and cell, some bytes for each."""

    def __init__(self, rows: Iterable[RequestRow] = ()) -> None:
        self._visits: dict[tuple[int, str], _Visit] = {}
        self.parts = set[int]()
        """The numbers of the parts that measured something."""
        self.requests = 0
        self.last_sequence = -1
        """Of all rows, warm-up's too."""
        for row in rows:
            self.add(row)

    def add(self, row: RequestRow) -> None:
        """Take in `row`; of one that was not measured its sequence number only."""
        if row.sequence > self.last_sequence:
            self.last_sequence = row.sequence
        if row.stage != "measure":
            return
        self.requests += 1
        key = (row.round, row.cell)
        visit = self._visits.get(key)
        if visit is None:
            visit = self._visits[key] = _Visit()
        self.parts.add(row.part)
        if row.index is None:  # rows of before they had an index
            visit.unnumbered += 1
        else:
            visit.indexes.append(row.index)
        if row.counts:
            visit.latencies.append(row.latency_seconds)

    def missing(self, number: int, cell: Cell, owed: int) -> list[int]:
        """The indexes of the `owed` requests of `cell` in round `number` that have no row."""
        visit = self._visits.get((number, cell.name), _EMPTY)
        if visit.unnumbered:
            return list(range(len(visit.indexes) + visit.unnumbered, owed))
        return sorted(set(range(owed)).difference(visit.indexes))

    def latencies(self, number: int, cell: Cell) -> array[float]:
        """Latency in seconds of each request of `cell` in round `number` that counts."""
        return self._visits.get((number, cell.name), _EMPTY).latencies

    def all_latencies(self) -> Latencies:
        """Those of every visit."""
        found = Latencies()
        for (number, cell), visit in self._visits.items():
            found.add_all(cell, number, visit.latencies)
        return found

    @property
    def order(self) -> list[list[str]]:
        """The names of the cells by round, in the order in which they were measured."""
        found: dict[int, list[str]] = {}
        for number, cell in self._visits:
            found.setdefault(number, []).append(cell)
        return [found[number] for number in sorted(found)]


class Owed:
    """How many requests the plan has in a visit: fewer where it was cut."""

    def __init__(self, cut_visits: Iterable[CutVisit] = ()) -> None:
        self._sent = {(cut.round, cut.cell): cut.sent for cut in cut_visits}

    def requests(self, number: int, cell: Cell) -> int:
        """Requests of `cell` in round `number`, those with a row too."""
        return self._sent.get((number, cell.name), cell.requests)


def first_missing(plan: Plan, finished: Finished, owed: Owed) -> tuple[int, Cell] | None:
    """The first round and cell that the plan owes a request; None where it was run to its end.

    Which rounds the plan has depends on its looks: they are taken again, from the rows.
    """
    latencies = Latencies()
    for number, cells in rounds(plan, latencies, lambda _: None):
        for cell in cells:
            if finished.missing(number, cell, owed.requests(number, cell)):
                return number, cell
            latencies.add_all(cell.name, number, finished.latencies(number, cell))
    return None


def is_whole(run: SweepRun, finished: Finished) -> bool:
    """Whether every request that the plan of `run` owes has a row."""
    return first_missing(run.plan, finished, Owed(run.cut_visits)) is None
