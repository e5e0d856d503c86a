"""Who of those that wait joins the running rows: as many as make all wait least, who runs counted twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from statistics import fmean
from time import perf_counter_ns
from typing import Protocol

from service.engine.batching.queue import Queue
from service.engine.batching.step_costs import StepCosts
from service.protocol.messages import Job


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

    def prefill(self, rows: int) -> int | None:
        """Of the prefill of so many."""


@dataclass(frozen=True, slots=True)
class CostsOfMode:
    """Those of `mode`: of the smallest of `buckets` that holds the rows. `buckets` are in order."""

    mode: str
    buckets: Sequence[int]
    costs: StepCosts

    @property
    def most(self) -> int:
        """The largest bucket."""
        return self.buckets[-1]

    def step(self, rows: int) -> int | None:
        """As in Costs."""
        return self.costs.of(self.mode, "decode", self._bucket(rows))

    def prefill(self, rows: int) -> int | None:
        """As in Costs."""
        return self.costs.of(self.mode, "prefill", self._bucket(rows))

    def _bucket(self, rows: int) -> int:
        return next(one for one in self.buckets if one >= rows)


ASKED_AGAIN_STEPS = 8
"""Where nobody joined, and nobody has come or left since, the question waits so many steps: it takes longer
than all else between two of them."""


RUNNING_COUNT = 2
"""Who runs counts so often, as it gains nothing by those that join: so they gain twice what it loses."""

NEWEST_JOBS = 32
FEWEST_JOBS = 8
"""How often requests come is known from so many of the newest, and not from fewer."""


class Joining:
    """Decides over `queue`, with what steps take in each of `buckets`."""

    def __init__(self, queue: Queue, buckets: Sequence[int], costs: StepCosts) -> None:
        self._queue = queue
        self._buckets = sorted(buckets)
        self._costs = costs
        self._declined: tuple[int, int, str] | None = None
        self._asked_again = 0
        self._begun: deque[tuple[int, int]] = deque(maxlen=NEWEST_JOBS)

    def begun(self, jobs: Iterable[Job]) -> None:
        """They run now: how often requests come is told by the newest."""
        self._begun += [(job.sent_ns, len(job.prompts)) for job in jobs]

    def _rate(self, waiting: int) -> float:
        """Rows that come in a nanosecond: of the newest jobs that have begun, and the `waiting` rows."""
        if len(self._begun) < FEWEST_JOBS:
            return 0.0
        rows = waiting + sum(rows for _, rows in self._begun)
        return rows / max(1, perf_counter_ns() - self._begun[0][0])

    def beginning_with(self, first: Job) -> int:
        """The most rows that begin together, those of `first` included."""
        costs = self._of(first.mode)
        waiting = [first, *self._waiting(first.mode)]
        rows = [len(job.prompts) for job in waiting]
        count = worth_joining(0, 0.0, rows, _steps(waiting), costs, self._rate(sum(rows)))
        return sum(rows[:count])

    def beside(self, running: int, steps_left: Callable[[], float], mode: str) -> int:
        """How many of those that wait join the `running` rows of `mode`, which have `steps_left()` to go on
        average; now or, where fewer can be prefilled at once, one step after the other. Asked at every step.
        """
        costs = self._of(mode)
        waiting = self._waiting(mode) if running < costs.most else []
        if not waiting:
            return 0
        state = running, len(waiting), waiting[0].id
        self._asked_again -= 1
        if state == self._declined and self._asked_again > 0:
            return 0
        rows = [len(job.prompts) for job in waiting]
        rate = self._rate(sum(rows))
        count = worth_joining(running, steps_left(), rows, _steps(waiting), costs, rate)
        self._declined, self._asked_again = (None if count else state), ASKED_AGAIN_STEPS
        return count

    def _of(self, mode: str) -> CostsOfMode:
        return CostsOfMode(mode, self._buckets, self._costs)

    def _waiting(self, mode: str) -> list[Job]:
        """Those that wait, up to the first that cannot run beside `mode`."""
        return list(takewhile(lambda job: may_join(job, mode), self._queue.waiting_jobs()))


def worth_joining(
    running: int, steps_left: float, waiting: Sequence[int], steps: float, costs: Costs, rate: float = 0.0
) -> int:
    """How many of those that wait, each with its rows in `waiting`, should join `running` rows.

    So many of the first that fit that all wait least in sum, of equals the largest number; at least one where
    none runs. Summed up are the times until each row has ended, those that run RUNNING_COUNT times, and those
    of the rows that come meanwhile, `rate` a nanosecond, until all that are here have ended. Those that run
    have `steps_left` to go, those that wait `steps`, both at most: a text may end early.
    Who waits joins one that runs where it gains twice what that one loses: where a step of both takes less
    than 4/3 of a step of one, prefill aside; where many come, steps that are cheaper per row gain for all of
    them. Where a step's cost is not known, as while other modes warm up, all that fit join, so that no queue
    is longer than it has to be.
    """
    fitting = sum(1 for total in accumulate(waiting) if running + total <= costs.most)
    numbers = range(0 if running else min(1, fitting), fitting + 1)
    overlap = min(steps_left, steps)

    def waited_ns(count: int) -> tuple[float, int]:
        joined, rest = sum(waiting[:count]), sum(waiting[count:])
        step = costs.step(running + joined)
        if step is None:
            return 0.0, -count
        left_ns = joined_ns = steps_left * step
        if joined:
            left_ns = joined_ns = _known(costs.prefill(joined)) + overlap * step
            left_ns += (steps_left - overlap) * _known(costs.step(max(1, running)), step)
            joined_ns += (steps - overlap) * _known(costs.step(joined), step)
        # Those that do not join begin beside them, where they find room when the others have ended.
        beside = running > 0 and rest <= costs.most - joined
        begin_ns = left_ns if beside else joined_ns
        least, at_once = max(waiting[count:], default=0), min(rest, costs.most)
        ways = (
            _in_turns(rest, group, begin_ns, joined if beside else 0, steps, costs, step)
            for group in {*(bucket for bucket in costs.buckets if least <= bucket < at_once), at_once}
        )
        rest_ns = min(waited + rate * max(left_ns, joined_ns, ended) ** 2 / 2 for waited, ended in ways)
        return RUNNING_COUNT * running * left_ns + joined * joined_ns + rest_ns, -count

    return min(numbers, key=waited_ns, default=0)


def _in_turns(
    rows: int, group: int, begin_ns: float, beside: int, steps: float, costs: Costs, step: int
) -> tuple[float, float]:
    """The sum of the times until each of `rows` has ended, a `group` at once, and when the last has.

    They begin at `begin_ns`, next to `beside` others; where a step is not known, it takes as long as `step`.
    """
    if not rows:
        return 0.0, begin_ns
    together = min(costs.most, group + beside)
    turn_ns = _known(costs.prefill(group)) + steps * _known(costs.step(together), step)
    waited, ended = 0.0, begin_ns
    for left in range(rows, 0, -group):
        ended += turn_ns
        waited += min(group, left) * ended
    return waited, ended


def _known(cost: int | None, otherwise: int = 0) -> int:
    return otherwise if cost is None else cost


def _steps(jobs: Sequence[Job]) -> float:
    return fmean(job.max_new_tokens for job in jobs)


def may_join(job: Job, mode: str, room: int | None = None) -> bool:
    """Whether it runs beside others of `mode`, and fits into `room` rows."""
    return job.mode == mode and not runs_alone(job) and (room is None or len(job.prompts) <= room)


def runs_alone(job: Job) -> bool:
    """Whether a job is never merged: what the profiler sees of a step, or what is compared, is one job's."""
    return job.profile or job.alone
