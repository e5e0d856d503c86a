"""How many of those that wait should join: as many as make all wait least in sum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import ceil
from typing import Protocol

RUNNING_COUNT = 3
"""At a low load who runs counts so often, as it gains nothing by those that join."""


class Costs(Protocol):
    """Nanoseconds of one mode; None: not known."""

    @property
    def buckets(self) -> Sequence[int]:
        """In order."""

    @property
    def most(self) -> int:
        """Rows that can run at once."""

    def step(self, rows: int) -> int | None:
        """Of a decode step of so many rows."""

    def prefill(self, rows: int, room: int) -> int | None:
        """Of all prefills of so many, where `room` rows are free."""


def worth_joining(
    running: int, steps_left: float, waiting: Sequence[int], steps: float, costs: Costs, rate: float = 0.0
) -> int:
    """How many of those that wait, each with its rows in `waiting`, should join `running` rows.

    So many of the first that fit that all wait least in sum, of equals the largest number; at least one where
    none runs. Summed up are the times until each row has ended, those that run RUNNING_COUNT times (once
    where more come than could be served one at a time: who waits then waits for all of them), and those
    of the rows that come meanwhile, `rate` a nanosecond, until all that are here have ended. Those that run
    have `steps_left` to go, those that wait `steps`, both at most: a text may end early.
    Who waits joins one that runs where it gains three times what that one loses: a step of both takes less
    than 5/4 of a step of one, prefill aside; where many come, steps that are cheaper per row gain for all of
    them. Where a step's cost is not known, as while other modes warm up, all that fit join, so that no queue
    is longer than it has to be.
    """
    fitting = sum(1 for total in accumulate(waiting) if running + total <= costs.most)
    numbers = range(0 if running else min(1, fitting), fitting + 1)
    overlap = min(steps_left, steps)
    alone_ns = _known(costs.prefill(1, costs.most)) + steps * _known(costs.step(1))
    counted = RUNNING_COUNT if rate * alone_ns < 1 else 1

    def waited_ns(count: int) -> tuple[float, int]:
        joined, rest = sum(waiting[:count]), sum(waiting[count:])
        step = costs.step(running + joined)
        if step is None:
            return 0.0, -count
        left_ns = joined_ns = steps_left * step
        if joined:
            left_ns = joined_ns = _known(costs.prefill(joined, costs.most - running)) + overlap * step
            left_ns += (steps_left - overlap) * _known(costs.step(max(1, running)), step)
            joined_ns += (steps - overlap) * _known(costs.step(joined), step)
        # Those that do not join begin beside them, where they find room when the others have ended.
        beside = running > 0 and rest <= costs.most - joined
        begin_ns = left_ns if beside else joined_ns
        least, at_once = max(waiting[count:], default=0), min(rest, costs.most)
        ways = (
            in_turns(rest, group, begin_ns, joined if beside else 0, steps, costs, step)
            for group in {*(bucket for bucket in costs.buckets if least <= bucket < at_once), at_once}
        )
        rest_ns = min(waited + rate * max(left_ns, joined_ns, ended) ** 2 / 2 for waited, ended in ways)
        return counted * running * left_ns + joined * joined_ns + rest_ns, -count

    return min(numbers, key=waited_ns, default=0)


def in_turns(
    rows: int, group: int, begin_ns: float, beside: int, steps: float, costs: Costs, step: int
) -> tuple[float, float]:
    """The sum of the times until each of `rows` has ended, a `group` at once, and when the last has.

    They begin at `begin_ns`, next to `beside` others; where a step is not known, it takes as long as `step`.
    """
    if not rows:
        return 0.0, begin_ns
    together = min(costs.most, group + beside)
    turn_ns = _known(costs.prefill(group, costs.most - beside)) + steps * _known(costs.step(together), step)
    turns = ceil(rows / group)
    # The rows of turn n end at begin_ns + n turn_ns: full groups, and what the last turn has left.
    last = rows - (turns - 1) * group
    in_turn = group * turns * (turns - 1) / 2 + last * turns
    return rows * begin_ns + in_turn * turn_ns, begin_ns + turns * turn_ns


def _known(cost: int | None, otherwise: int = 0) -> int:
    return otherwise if cost is None else cost
