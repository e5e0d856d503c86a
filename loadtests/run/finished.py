"""Which requests of a plan have a row, and which the plan still owes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from loadtests.plan.cells import Cell, Plan
from loadtests.run.decisions import Latencies, rounds
from loadtests.run.rows import RequestRow


class Finished:
    """The measured requests that have a row, failed ones too, by round and cell."""

    def __init__(self, rows: Iterable[RequestRow] = ()) -> None:
        self._visits: dict[tuple[int, str], list[RequestRow]] = defaultdict(list)
        for row in rows:
            if row.stage == "measure":
                self._visits[row.round, row.cell].append(row)

    def of(self, number: int, cell: Cell) -> list[RequestRow]:
        """The rows of `cell` in round `number`."""
        return self._visits.get((number, cell.name), [])

    def missing(self, number: int, cell: Cell) -> list[int]:
        """The indexes of the requests of `cell` in round `number` that have no row."""
        indexes = [row.index for row in self.of(number, cell)]
        if None in indexes:  # rows of before they had an index
            return list(range(len(indexes), cell.requests))
        return sorted(set(range(cell.requests)).difference(indexes))


def first_missing(plan: Plan, rows: Sequence[RequestRow]) -> tuple[int, Cell] | None:
    """The first round and cell that the plan owes a request; None where it was run to its end.

    Which rounds the plan has depends on its looks: they are taken again, from the rows.
    """
    finished = Finished(rows)
    latencies = Latencies()
    for number, cells in rounds(plan, latencies, lambda _: None):
        for cell in cells:
            if finished.missing(number, cell):
                return number, cell
            latencies.add_rows(finished.of(number, cell))
    return None
