"""What a sweep measures next: the end of warm-up, rounds and interim checks, and requests without a row."""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from statistics import median

from loadtests.plan.cells import Cell, Group, Plan, order, work_name
from loadtests.run.events import InterimCheckEnded
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import CutBlock, InterimCheck, SweepRun
from service.statistics.choice import choose_each
from service.statistics.intervals import mean_interval

SLOPE_TOLERATED = 0.03
"""A mean fall below 3 % from one pass to the next is no slope, even where it is significant."""

SLOPE_CERTAIN = 0.10
"""A mean fall from 10 % on is a slope, however wide its interval: few cells scatter as much by chance."""


class WarmUp:
    """Judges passes over all cells, one request per cell and pass.

    Over after the first pass, from the `least`-th on, during which no compile counter moved and whose
    latencies are not lower than the pass before, by the mean of the per-cell log ratios and its t interval: a
    fall below 3 % is no slope, one from 10 % on is, and one between is where the interval excludes 0. A
    rising latency does not prolong it: more passes would not lower it. Ends unsettled after `most` passes.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._passes: list[Mapping[str, float]] = []
        self._counters: list[Mapping[str, float]] = []
        self.settled = False
        self.reason = "no pass yet"

    @property
    def passes(self) -> int:
        return len(self._passes)

    def add(self, latency_seconds: Mapping[str, float], counters: Mapping[str, float]) -> bool:
        """Add a pass: latency by cell that succeeded, compile counters after it. True: warm-up is over."""
        self._passes.append(latency_seconds)
        self._counters.append(counters)
        self.settled, self.reason = self._judge()
        return self.settled or self.passes >= self._most

    def _judge(self) -> tuple[bool, str]:
        if self.passes < max(2, self._least):
            return False, f"pass {self.passes} of at least {max(2, self._least)}"
        before, after = self._counters[-2:]
        if moved := sorted(name for name in after if after[name] != before.get(name, 0.0)):
            return False, f"still compiling: {', '.join(moved)} moved"
        return _has_no_slope(*self._passes[-2:])

    def latency_seconds(self, cells: Sequence[str]) -> float | None:
        """Median over the last two passes and `cells`; None where none of them succeeded."""
        values = sorted(one[cell] for one in self._passes[-2:] for cell in cells if cell in one)
        return values[len(values) // 2] if values else None


def _has_no_slope(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[bool, str]:
    changes = [math.log(after[cell] / before[cell]) for cell in after if cell in before]
    if not changes:
        return False, "no cell answered twice"
    change = mean_interval(changes)
    reason = f"latency {math.expm1(change.value):+.1%} from one pass to the next"
    fall = -math.expm1(change.value)
    sloping = fall >= SLOPE_CERTAIN or (fall > SLOPE_TOLERATED and change.high < 0)
    return not sloping, reason


def group_name(group: Group) -> str:
    """'b=4 short n=32 c=1': how messages and `run.json` name a group."""
    batch, *_, concurrency, arrivals = group
    name = f"c={concurrency}" if arrivals is None else arrivals
    return f"b={batch} {work_name(group)}" + (name if isinstance(name, str) else f"load={name:g}")


class Latencies:
    """Compared seconds of measured requests, and their median by cell and round."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, array[float]]] = defaultdict(dict)

    def add(self, cell: str, number: int, latencies_seconds: Sequence[float]) -> None:
        """Add successful requests of round `number`; where there are none, the round stays absent."""
        if latencies_seconds:
            self._seconds[cell].setdefault(number, array("d")).extend(latencies_seconds)

    def medians(self, cell: str) -> dict[int, float]:
        return {number: median(values) for number, values in self._seconds.get(cell, {}).items()}


def rounds(
    plan: Plan,
    latencies: Latencies,
    checked: Callable[[InterimCheckEnded], None],
    ended: Iterable[InterimCheck] = (),
) -> Iterator[tuple[int, list[Cell]]]:
    """Each round's number and cells in order; `latencies` are filled by whoever runs them.

    All cells up to the plan's first interim check, then those of the main groups that are undecided, until
    there are none or the last check is over. A group that is decided does not come back. Calls `checked`
    after each check. What checks that have `ended` found stands, by whatever rule they were judged.
    """
    known = {check.round: check.undecided for check in ended}
    number = 0
    groups: list[Group] | None = None
    for last, following in zip_longest(plan.interim_checks, plan.interim_checks[1:]):
        while number < last:
            number += 1
            yield number, order(plan, number, groups)
        groups = plan.main_groups if groups is None else groups
        if last in known:
            groups = [group for group in groups if group_name(group) in known[last]]
        else:
            groups = undecided_groups(plan, groups, latencies)
        check = InterimCheck(round=last, undecided=[group_name(group) for group in groups])
        requests = 0 if following is None else (following - last) * plan.requests_of(groups)
        checked(InterimCheckEnded(check, requests))
        if not groups:
            return


def undecided_groups(plan: Plan, groups: Collection[Group], latencies: Latencies) -> list[Group]:
    """Those of `groups` whose answer is not resolved, at 95 % over all main groups and checks."""
    by_group: dict[Group, dict[str, dict[int, float]]] = {group: {} for group in plan.main_groups}
    for cell in plan.cells:
        if not cell.control and cell.group in by_group:
            by_group[cell.group][cell.mode] = latencies.medians(cell.name)
    found = choose_each(by_group, len(plan.interim_checks))
    return [group for group in groups if (one := found[group]) is None or one.state == "not resolved"]


class _Block:
    """The indexes of a block's requests that have a row, and the latencies of those that count."""

    __slots__ = ("indexes", "latencies")

    def __init__(self) -> None:
        self.indexes = array("q")
        self.latencies = array("d")


_EMPTY = _Block()


class Finished:
    """The measured requests that have a row, failed ones too: by round and cell, some bytes for each."""

    def __init__(self, rows: Iterable[RequestRow] = ()) -> None:
        self._blocks: dict[tuple[int, str], _Block] = defaultdict(_Block)
        self.parts = set[int]()
        """The numbers of the parts that measured something."""
        self.requests = 0
        self.last_sequence = -1
        """Of all rows, warm-up's too."""
        for row in rows:
            self.add(row)

    def add(self, row: RequestRow) -> None:
        """Take in `row`; of one that was not measured its sequence number only."""
        self.last_sequence = max(self.last_sequence, row.sequence)
        if row.stage != "measure":
            return
        self.requests += 1
        self.parts.add(row.part)
        block = self._blocks[row.round, row.cell]
        block.indexes.append(row.index)
        if row.counts:
            block.latencies.append(row.compared_seconds)

    def missing(self, number: int, cell: Cell, planned: int) -> list[int]:
        """The indexes of the `planned` requests of `cell` in round `number` that have no row."""
        return sorted(set(range(planned)).difference(self._blocks.get((number, cell.name), _EMPTY).indexes))

    def latencies(self, number: int, cell: Cell) -> array[float]:
        """Compared seconds of each request of `cell` in round `number` that counts."""
        return self._blocks.get((number, cell.name), _EMPTY).latencies

    def all_latencies(self) -> Latencies:
        """Those of every block."""
        found = Latencies()
        for (number, cell), block in self._blocks.items():
            found.add(cell, number, block.latencies)
        return found

    @property
    def order(self) -> list[list[str]]:
        """The names of the cells by round, in the order in which they were measured."""
        found: dict[int, list[str]] = {}
        for number, cell in self._blocks:
            found.setdefault(number, []).append(cell)
        return [found[number] for number in sorted(found)]


class Planned:
    """How many requests the plan has in a block: fewer where it was cut."""

    def __init__(self, cut_blocks: Iterable[CutBlock] = ()) -> None:
        self._sent = {(cut.round, cut.cell): cut.sent for cut in cut_blocks}

    def requests(self, number: int, cell: Cell) -> int:
        """Requests of `cell` in round `number`, those with a row too."""
        return self._sent.get((number, cell.name), cell.requests)


def first_missing(
    plan: Plan, finished: Finished, planned: Planned, ended: Iterable[InterimCheck] = ()
) -> tuple[int, Cell] | None:
    """The first round and cell with a request that has no row; None where the plan was run to its end.

    Which rounds the plan has depends on its interim checks: those that have not `ended` are repeated, from
    the rows.
    """
    latencies = Latencies()
    for number, cells in rounds(plan, latencies, lambda _: None, ended):
        for cell in cells:
            if finished.missing(number, cell, planned.requests(number, cell)):
                return number, cell
            latencies.add(cell.name, number, finished.latencies(number, cell))
    return None


def is_whole(run: SweepRun, finished: Finished) -> bool:
    return first_missing(run.plan, finished, Planned(run.cut_visits), run.looks) is None
