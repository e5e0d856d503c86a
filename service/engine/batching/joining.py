"""Who of those that wait joins the running rows, by what steps cost here and how often requests come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import fmean
from time import perf_counter_ns

from service.engine.batching.least_wait import worth_joining
from service.engine.batching.prefill_groups import BucketCosts, cheapest_groups, least_prefills
from service.engine.batching.queue import Queue
from service.engine.batching.step_costs import StepCosts
from service.protocol.messages import Job


@dataclass(frozen=True, slots=True)
class CostsOfMode:
    """Those of `mode`: a step runs in the smallest of `buckets`, which are in order, that holds its rows."""

    mode: str
    buckets: Sequence[int]
    costs: StepCosts
    _prefills: dict[int, BucketCosts | None] = field(default_factory=dict)

    @property
    def most(self) -> int:
        """The largest bucket."""
        return self.buckets[-1]

    def step(self, rows: int) -> int | None:
        """As in `least_wait.Costs`."""
        return self.costs.of(self.mode, "decode", next(one for one in self.buckets if one >= rows))

    def prefill(self, rows: int, room: int) -> int | None:
        """As in `least_wait.Costs`."""
        known = self._known_prefills(room)
        return None if known is None else least_prefills(self.most, known)[rows]

    def groups(self, rows: Sequence[int], free: int) -> list[int]:
        """As `cheapest_groups`; where costs are not known, the largest for which there is room."""
        known = self._known_prefills(free)
        return cheapest_groups(rows, free, known or tuple((bucket, 1) for bucket in self.buckets))

    def _known_prefills(self, room: int) -> BucketCosts | None:
        """Of the buckets that fit into `room`, or of the smallest; None: not known."""
        if room not in self._prefills:
            fitting = [one for one in self.buckets if one <= room] or self.buckets[:1]
            costs = [(one, self.costs.of(self.mode, "prefill", one)) for one in fitting]
            known = tuple((bucket, cost) for bucket, cost in costs if cost is not None)
            self._prefills[room] = known if len(known) == len(fitting) else None
        return self._prefills[room]


NEWEST_JOBS = 32
FEWEST_JOBS = 8
"""How often requests come is known from so many of the newest, and not from fewer."""


class Joining:
    """Decides over `queue`, with what steps take in each of `buckets`."""

    def __init__(self, queue: Queue, buckets: Sequence[int], costs: StepCosts) -> None:
        self._queue = queue
        self._buckets = sorted(buckets)
        self._costs = costs
        self._declined: tuple[int, int, int] | None = None
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
        others = self._waiting(first.mode)
        if not others:
            return len(first.prompts)
        costs, waiting = self._of(first.mode), [first, *others]
        rows = [len(job.prompts) for job in waiting]
        count = worth_joining(0, 0.0, rows, _steps(waiting), costs, self._rate(sum(rows)))
        return sum(rows[:count])

    def beside(self, running: int, steps_left: Callable[[], float], mode: str) -> int:
        """How many of those that wait join the `running` rows of `mode`, which have `steps_left()` to go on
        average.

        Where nobody joined, and nobody has come or left since, nobody does: with fewer steps to go together
        there is less to gain, but for one in a hundred cases, and the question takes as long as all else
        between ten steps.
        """
        costs = self._of(mode)
        waiting = self._waiting(mode) if running < costs.most else []
        if not waiting:
            return 0
        state = running, len(waiting), waiting[0].sent_ns
        if state == self._declined:
            return 0
        rows = [len(job.prompts) for job in waiting]
        rate = self._rate(sum(rows))
        count = worth_joining(running, steps_left(), rows, _steps(waiting), costs, rate)
        self._declined = None if count else state
        return count

    def groups(self, jobs: Sequence[Job], free: int) -> list[int]:
        """How many of `jobs`, which join now, are prefilled together, one group after the other."""
        if len(jobs) == 1:
            return [1]
        return self._of(jobs[0].mode).groups([len(job.prompts) for job in jobs], free)

    def _of(self, mode: str) -> CostsOfMode:
        return CostsOfMode(mode, self._buckets, self._costs)

    def _waiting(self, mode: str) -> list[Job]:
        """Those that wait, up to the first that cannot run beside `mode`."""
        return list(takewhile(lambda job: may_join(job, mode), self._queue.waiting_jobs()))


def _steps(jobs: Sequence[Job]) -> float:
    return fmean(job.max_new_tokens for job in jobs)


def may_join(job: Job, mode: str, room: int | None = None) -> bool:
    """Whether it runs beside others of `mode`, and fits into `room` rows."""
    return job.mode == mode and not runs_alone(job) and (room is None or len(job.prompts) <= room)


def runs_alone(job: Job) -> bool:
    """Whether a job is never merged: what the profiler sees of a step, or what is compared, is one job's."""
    return job.profile or job.sample or job.alone
