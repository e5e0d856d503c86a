"""Which requests run together: first come, first served, of one mode, up to the largest bucket."""

from __future__ import annotations

import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import ceil
from time import perf_counter_ns

import msgspec

from service.engine.batching.batch import Batch, Left
from service.engine.batching.shared_timings import BatchStep, shared_timings
from service.engine.configured_mode import ConfiguredMode
from service.engine.generation import Generator
from service.engine.inbox import Inbox
from service.engine.job_result import JobResult
from service.engine.job_runner import SAMPLING, JobRunner, warming_job
from service.engine.local_inbox import LocalInbox
from service.engine.outcome import StepEstimates, build_outcome
from service.engine.warmup import Warmup
from service.records import Begun, EngineSettings, Job, OutcomeKind
from service.step.meters import Meter


class Scheduler:
    """Merges the jobs of `inbox`, and answers each; `serve_alone` runs and answers one that is not merged.

    `estimates` are the costs per step of a mode in a bucket; `answered` is called after each answer. Steps of
    merged jobs run within `sampling`.
    """

    def __init__(
        self,
        inbox: Inbox | LocalInbox,
        settings: EngineSettings,
        generator: Generator,
        meter: Meter,
        runner: JobRunner,
        warmup: Warmup,
        serve_alone: Callable[[Job], None],
        estimates: Callable[[str, int], StepEstimates],
        answered: Callable[[], None],
        sampling: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._inbox = inbox
        self._continuous = settings.batching == "continuous"
        self._window_ns = round(settings.batch_window_ms * 1e6)
        self._buckets = sorted(generator.inputs)
        self._generator = generator
        self._meter = meter
        self._runner = runner
        self._warmup = warmup
        self._serve_alone = serve_alone
        self._estimates = estimates
        self._answered = answered
        self._sampling = sampling
        self._waiting: deque[Job] = deque()
        self._switches = 0

    def serve(self, first: Job, idle_since_ns: int) -> None:
        """Run `first`, and whoever may run with it, until all have ended.

        The engine has had nothing else to do since `idle_since_ns`. Raises what loses the device's context.
        """
        configured = self._warmup.modes.get(first.mode)
        if (
            configured is None
            or configured.status.state != "ready"
            or runs_alone(first)
            or len(first.prompts) > self._buckets[-1]
            or self._ended(first)
        ):
            self._inbox.send(Begun(ids=[first.id]))
            self._serve_alone(first)
            return
        self._switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        # What it was on its way to an engine that waited for it is no queue.
        transport_ns = max(0, perf_counter_ns() - max(first.sent_ns, idle_since_ns))
        self._waiting.append(msgspec.structs.replace(first, sent_ns=first.sent_ns + transport_ns))
        with self._sampling():
            self._run(self._new_batch(configured, self._answer), first.mode)

    def _run(self, batch: Batch, mode: str) -> None:
        """Prefill some of those that wait, then decode one step of all that run, and so on.

        One prefill between two steps: those that run stand still for no more, however many come.
        """
        self._admit(batch, mode)
        if not self._continuous:
            self._await_others(batch, mode)
        while self._waiting or batch.running:
            group = self._next_group(batch.rows.free)
            if group:
                self._inbox.send(Begun(ids=[job.id for job in group]))
                now_ns = perf_counter_ns()
                batch.prefill([(job, _begun(job, now_ns)) for job in group])
            if batch.running:
                batch.step()
            if self._continuous:
                self._admit(batch, mode)

    def _admit(self, batch: Batch, mode: str) -> None:
        """Take from the inbox who may join, as long as there are rows for all; nobody is overtaken."""
        rows = batch.rows.taken + sum(len(job.prompts) for job in self._waiting)
        while not self._inbox.stopped and (job := self._inbox.next_job) is not None:
            kind = self._ended(job)
            if kind is not None:
                self._answer_unrun(self._inbox.join(), kind)
            elif job.mode == mode and not runs_alone(job) and rows + len(job.prompts) <= self._buckets[-1]:
                self._waiting.append(self._inbox.join())
                rows += len(job.prompts)
            else:
                return

    def _await_others(self, batch: Batch, mode: str) -> None:
        """Until the window has closed, the rows are full, or one has come that cannot join."""
        closes_ns = self._waiting[0].sent_ns + self._window_ns
        while not self._inbox.stopped and self._inbox.idle:
            left_ns = closes_ns - perf_counter_ns()
            if left_ns <= 0 or sum(len(job.prompts) for job in self._waiting) == self._buckets[-1]:
                return
            self._inbox.receive(ceil(left_ns / 1e6))
            self._admit(batch, mode)

    def _next_group(self, free: int) -> list[Job]:
        """Those of `waiting` that are prefilled together now: as many as fit into a bucket of `free` rows."""
        for job in list(self._waiting):
            kind = self._ended(job)
            if kind is not None:
                self._waiting.remove(job)
                self._answer_unrun(job, kind)
        room = max((bucket for bucket in self._buckets if bucket <= free), default=0)
        group: list[Job] = []
        while self._waiting and len(self._waiting[0].prompts) <= room:
            room -= len(self._waiting[0].prompts)
            group.append(self._waiting.popleft())
        return group

    def _ended(self, job: Job) -> OutcomeKind | None:
        """How a job ended that waited too long."""
        if perf_counter_ns() > job.deadline_ns:
            return "timeout"
        return "cancelled" if self._inbox.is_cancelled(job) else None

    def _answer_unrun(self, job: Job, kind: OutcomeKind) -> None:
        self._answer(job, JobResult(taken_ns=perf_counter_ns(), kind=kind), [])

    def _answer(self, job: Job, result: JobResult, steps: Sequence[BatchStep]) -> None:
        """Exactly one Outcome per job. Involuntary switches are counted by who leaves first."""
        switches = 0
        if result.bucket and result.kind == "ok":
            now = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
            switches, self._switches = now - self._switches, now
        measured = partial(
            shared_timings, result, len(job.prompts), steps, partial(self._estimates, job.mode), switches
        )
        self._inbox.send(build_outcome(job, result, self._warmup.modes.get(job.mode), measured))
        self._answered()
        self._inbox.left(job)

    def warm(self) -> None:
        """Merge sampled jobs of one ready mode, unanswered: on CUDA the first use of a kernel loads it."""
        for configured in list(self._warmup.ready().values())[:1]:
            batch = self._new_batch(configured, _log_failure)
            for options in SAMPLING:
                if batch.rows.free >= self._buckets[0]:
                    batch.prefill([(warming_job(configured.mode.name, 1, options), JobResult())])
                if batch.running:
                    batch.step()
            while batch.running:
                batch.step()

    def _new_batch(self, configured: ConfiguredMode, left: Left) -> Batch:
        def failed(error: Exception, results: list[JobResult]) -> None:
            self._runner.failed(error, configured, results)

        return Batch(self._generator, configured.steps, self._meter, self._inbox, left, failed)


def runs_alone(job: Job) -> bool:
    """Whether a job is never merged: what the profiler sees of a step, or what is compared, is one job's."""
    return job.profile or job.sample or job.alone


def _begun(job: Job, now_ns: int) -> JobResult:
    """Its queue ends now, where its prefill begins."""
    return JobResult(taken_ns=now_ns, queue_ns=max(0, now_ns - job.sent_ns))


def _log_failure(job: Job, result: JobResult, steps: Sequence[BatchStep]) -> None:
    """Why a job of the warm-up has failed, if it has: no reason not to serve."""
    if result.problem is not None:
        message = result.problem.message
        print(f"launchbound engine: merged requests of the warm-up failed: {message}", file=sys.stderr)
