"""Which jobs run together: in order of arrival, of one mode, as many as there are free rows for.

Nobody is overtaken. Whoever cannot join the running batch (of another mode, or to run alone, or with more
prompts than rows are free) has all that came later wait too, until the batch has made room or has ended. How
many of those who can join a continuous batch do, `joining` decides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import ceil
from time import perf_counter_ns

from service.engine.batching.answers import Answers
from service.engine.batching.batch import Batch
from service.engine.batching.cost_rounds import CostRounds
from service.engine.batching.joining import Joining, may_join, runs_alone
from service.engine.batching.member import LeftMember, never_ran
from service.engine.batching.queue import Queue
from service.engine.batching.step_costs import StepCosts
from service.engine.configured_mode import ConfiguredMode
from service.engine.generation import Generator
from service.engine.job_result import JobResult
from service.engine.job_runner import SAMPLING, JobRunner, warming_job
from service.engine.warmup import Warmup
from service.protocol.messages import Begun, EngineSettings, Job, OutcomeKind
from service.step.meters import Meter

Arrived = tuple[Job, int]
"""With the nanoseconds for which it was on its way to an engine that waited for it."""


class Scheduler:
    """Merges the jobs of `queue`; `serve_alone` runs and answers one that is not merged.

    Steps of merged jobs run within `sampling`.
    """

    def __init__(
        self,
        queue: Queue,
        settings: EngineSettings,
        generator: Generator,
        meter: Meter,
        runner: JobRunner,
        warmup: Warmup,
        answers: Answers,
        serve_alone: Callable[[Job], None],
        costs: StepCosts | None = None,
        sampling: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._queue = queue
        self._continuous = settings.batching == "continuous"
        self._window_ns = 0 if self._continuous else round(settings.batch_window_ms * 1e6)
        self._largest = max(generator.places)
        costs = costs or StepCosts()
        self._joins = Joining(queue, list(generator.places), costs)
        decided_by_costs = warmup.ready if self._continuous else dict
        self.cost_rounds = CostRounds(costs, decided_by_costs, generator.places, meter)
        self._generator = generator
        self._meter = meter
        self._runner = runner
        self._warmup = warmup
        self._answers = answers
        self._serve_alone = serve_alone
        self._sampling = sampling

    def serve(self, first: Job, idle_since_ns: int) -> None:
        """Run `first`, and whoever may run with it, until all have ended.

        The engine has had nothing else to do since `idle_since_ns`. Raises what loses the device's context.
        """
        configured = self._warmup.modes.get(first.mode)
        startable = configured is not None and configured.status.state == "ready"
        if configured is None or not startable or runs_alone(first) or self._ended(first):
            self._queue.send(Begun(ids=[first.id]))
            self._serve_alone(first)
        else:
            self._answers.batch_begins()
            with self._sampling():
                self._merge(first, configured, idle_since_ns)

    def _merge(self, first: Job, configured: ConfiguredMode, idle_since_ns: int) -> None:
        batch = self._new_batch(configured, self._left)
        joining = self._gathered(first, idle_since_ns)
        while joining or batch.members:
            self._join(batch, joining)
            if batch.members:
                # One step where somebody has joined: those that end with their prefill leave their rows
                # at once, so that others could join for ever while those that run stand still.
                batch.steps(-1 if joining else self._queue.depth)
            joining = self._joining(batch, first.mode) if self._continuous else []

    def _join(self, batch: Batch, joining: Sequence[Arrived]) -> None:
        """The queue of each ends where the prefill of its group begins."""
        if not joining:
            return
        for count in self._joins.groups([job for job, _ in joining], batch.free):
            group, joining = joining[:count], joining[count:]
            self._joins.begun(job for job, _ in group)
            self._queue.send(Begun(ids=[job.id for job, _ in group]))
            now = perf_counter_ns()
            batch.join([(job, _taken(job, now, transport_ns)) for job, transport_ns in group])

    def warm(self) -> None:
        """Merge sampled jobs of one ready mode, unanswered: on CUDA the first use of a kernel loads it."""
        configured = next(iter(self._warmup.ready().values()), None)
        if configured is None:
            return
        jobs = [warming_job(configured.mode.name, 1, options) for options in SAMPLING]
        batch = self._new_batch(configured, _tell_failure)
        for job in jobs:
            if batch.room():
                batch.join([(job, JobResult())])
            if batch.members:
                batch.step()
        while batch.members:
            batch.step()

    def _new_batch(self, configured: ConfiguredMode, left: Callable[[LeftMember], None]) -> Batch:
        def failed(error: Exception, results: list[JobResult]) -> None:
            self._runner.failed(error, configured, results)

        return Batch(self._generator, self._queue, configured.steps, self._meter, left, failed)

    def _left(self, left: LeftMember) -> None:
        self._answers.answer(left)
        self._queue.left(left.job)

    def _gathered(self, first: Job, idle_since_ns: int) -> list[Arrived]:
        """`first` and those that come within its window, or wait already; the window ends where one cannot
        join, because it would have to wait for the others.
        """
        queue = self._queue
        gathered = [(first, _transport_ns(first, idle_since_ns))]
        rows, closes_ns = len(first.prompts), first.sent_ns + self._window_ns
        most = self._joins.beginning_with(first) if self._continuous else self._largest
        while rows < most and not queue.stopped:
            job = self._next_job()
            if job is not None and may_join(job, first.mode, most - rows):
                gathered.append((queue.join(), _transport_ns(job, idle_since_ns)))
                rows += len(job.prompts)
            elif not queue.idle or (left_ns := closes_ns - perf_counter_ns()) <= 0:
                break
            else:
                idle_since_ns = perf_counter_ns()
                queue.receive(ceil(left_ns / 1e6))
        return gathered

    def _joining(self, batch: Batch, mode: str) -> list[Arrived]:
        """Those that join a running batch now; the engine has been busy since they were sent."""
        queue, rows = self._queue, 0
        joining: list[Arrived] = []
        if queue.idle or queue.stopped or not batch.members or self._next_job() is None:
            return joining
        for _ in range(self._joins.beside(batch.rows, batch.steps_left, mode)):
            job = self._next_job()
            if job is None or not may_join(job, mode, batch.room(rows)):
                break
            joining.append((queue.join(), 0))
            rows += len(job.prompts)
        return joining

    def _next_job(self) -> Job | None:
        """The first that waits, if that is a job; those that need not run any more are answered before it."""
        while (job := self._queue.next_job) is not None:
            kind = self._ended(job)
            if kind is None:
                return job
            self._left(never_ran(self._queue.join(), JobResult(taken_ns=perf_counter_ns(), kind=kind)))
        return None

    def _ended(self, job: Job) -> OutcomeKind | None:
        """How a job ended that waited too long."""
        if perf_counter_ns() > job.deadline_ns:
            return "timeout"
        return "cancelled" if self._queue.is_cancelled(job) else None


def _tell_failure(left: LeftMember) -> None:
    """Log why a job of the warm-up has failed, if it has: no reason not to serve."""
    if (problem := left.result.problem) is not None:
        print(
            f"launchbound engine: merged requests of the warm-up failed: {problem.message}", file=sys.stderr
        )


def _transport_ns(job: Job, idle_since_ns: int) -> int:
    """Of a job that has just been received, by an engine that has waited since then."""
    return max(0, perf_counter_ns() - max(job.sent_ns, idle_since_ns))


def _taken(job: Job, now_ns: int, transport_ns: int) -> JobResult:
    """Its queue ends now, where its prefill begins."""
    return JobResult(taken_ns=now_ns, queue_ns=max(0, now_ns - job.sent_ns - transport_ns))
