"""The rounds of a plan: what each visits, and which groups go on, by the rule that the report judges with."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import zip_longest
from statistics import median

from loadtests.plan.cells import Cell, Group, Plan, order
from loadtests.run.assignment import LookEnded
from loadtests.run.run_file import Look
from service.statistics.choice import decided


def group_name(group: Group) -> str:
    """'b=4 short n=32 c=1': how messages and `run.json` name a group."""
    batch, prompt_set, tokens, concurrency, arrivals = group
    name = f"c={concurrency}" if arrivals is None else arrivals
    return f"b={batch} {prompt_set} n={tokens} " + (name if isinstance(name, str) else f"load={name:g}")


class Latencies:
    """Latencies of measured requests, and their median by cell and round."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, array[float]]] = defaultdict(dict)

    def add_all(self, cell: str, number: int, latencies_seconds: Sequence[float]) -> None:
        """Take in successful requests of round `number`; where there are none, the round stays absent."""
        if latencies_seconds:
            self._seconds[cell].setdefault(number, array("d")).extend(latencies_seconds)

    def add(self, cell: str, number: int, latency_seconds: float) -> None:
        """Take in one successful request of round `number`."""
        self._seconds[cell].setdefault(number, array("d")).append(latency_seconds)

    def medians(self, cell: str) -> dict[int, float]:
        """Median latency of `cell` by round."""
        return {number: median(values) for number, values in self._seconds.get(cell, {}).items()}


def rounds(
    plan: Plan, latencies: Latencies, looked: Callable[[LookEnded], None]
) -> Iterator[tuple[int, list[Cell]]]:
    """Each round's number and cells in order; `latencies` are filled by whoever runs them.

    All cells up to the plan's first look, then those of the main groups that are undecided, until there are
    none or the last look is over. A group that is decided does not come back. Calls `looked` after each look.
    """
    number = 0
    groups: list[Group] | None = None
    for look, following in zip_longest(plan.looks, plan.looks[1:]):
        while number < look:
            number += 1
            yield number, order(plan, number, groups)
        groups = undecided_groups(plan, plan.main_groups if groups is None else groups, latencies)
        requests = 0 if following is None else (following - look) * plan.requests_of(groups)
        looked(LookEnded(Look(round=look, undecided=[group_name(group) for group in groups]), requests))
        if not groups:
            return


def undecided_groups(plan: Plan, groups: Collection[Group], latencies: Latencies) -> list[Group]:
    """Those of `groups` whose fastest mode is not settled against every other at the plan's confidence."""
    return [
        group
        for group in groups
        if not _is_decided(plan, [c for c in plan.cells if c.group == group], latencies)
    ]


def _is_decided(plan: Plan, cells: Sequence[Cell], latencies: Latencies) -> bool:
    by_mode = {cell.mode: latencies.medians(cell.name) for cell in cells if cell.candidate}
    return decided(by_mode, plan.confidence)
