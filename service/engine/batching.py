"""Which requests run together: first come, first served, of one mode, up to the largest bucket."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

import msgspec
import torch
from torch import Tensor

from service.engine.generation import Generator, HostFeed, prefill
from service.engine.inbox import Inbox, LocalInbox
from service.engine.job import JobResult
from service.engine.job_runner import JobRunner
from service.engine.outcome import BatchStep, StepEstimates, build_outcome, shared_timings
from service.engine.text import Completions
from service.engine.warmup import ConfiguredMode
from service.records import Begun, Job, OutcomeKind
from service.step.buffers import Arguments, copy_row
from service.step.callables import Step
from service.step.meters import Readings
from service.step.sampling import Sampler


class Scheduler:
    """Merges the jobs of `inbox`, and answers each; `serve_alone` runs and answers one that is not merged."""

    def __init__(
        self,
        inbox: Inbox | LocalInbox,
        runner: JobRunner,
        serve_alone: Callable[[Job], None],
        estimates: Callable[[str, int], StepEstimates],
        answered: Callable[[], None],
    ) -> None:
        self._inbox = inbox
        self._runner = runner
        assert isinstance(runner.generator, Generator)
        self._buckets = sorted(runner.generator.feeds)
        self._serve_alone = serve_alone
        self._estimates = estimates
        self._answered = answered
        self._waiting: deque[Job] = deque()
        self._switches = 0

    def serve(self, first: Job, idle_since_ns: int) -> None:
        """Run `first` and all who join it until all have ended; the engine idled since `idle_since_ns`."""
        configured = self._runner.warmup.modes.get(first.mode)
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
        with self._runner.shares.sampling():
            self._run(Batch(self._runner, configured, self._inbox, self._answer), first.mode)

    def _run(self, batch: Batch, mode: str) -> None:
        """Prefill some of those that wait, then decode one step of all that run, and so on."""
        self._admit(batch, mode)
        while self._waiting or batch.running:
            if group := self._schedule(batch.rows.free):
                self._inbox.send(Begun(ids=[job.id for job in group]))
                now_ns = perf_counter_ns()  # where a queue ends and a prefill begins
                results = [JobResult(now_ns, max(0, now_ns - job.sent_ns)) for job in group]
                batch.prefill(list(zip(group, results, strict=True)))
            if batch.running:
                batch.step()
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

    def _schedule(self, free: int) -> list[Job]:
        """Who is prefilled next: as many of those that wait as fit into a bucket of `free` rows."""
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
        self._inbox.send(build_outcome(job, result, self._runner.warmup.modes.get(job.mode), measured))
        self._answered()
        self._inbox.left(job)


def runs_alone(job: Job) -> bool:
    """Whether a job is never merged: what is profiled, sampled or compared is one job's."""
    return job.profile or job.sample or job.alone


Left = Callable[[Job, JobResult, Sequence[BatchStep]], None]
"""Called with each job that has ended, and the steps that it ran in."""


class Batch:
    """Runs jobs of one mode. `left` is called with each that ends. The loss of the device is raised."""

    def __init__(
        self, runner: JobRunner, configured: ConfiguredMode, inbox: Inbox | LocalInbox, left: Left
    ) -> None:
        assert isinstance(runner.generator, Generator)
        self._generator = runner.generator
        self._meter = runner.meter
        self._steps = configured.steps
        self._inbox = inbox
        self._left = left
        self._failed = partial(runner.failed, configured)
        self._feeds = runner.generator.feeds
        largest = self._feeds[max(self._feeds)].buffers
        self._device = largest.token.device
        self.rows = Rows(list(self._feeds), partial(copy_row, largest.cache))
        self.running: list[Running] = []
        self._plan: DecodePlan | None = None
        self._poll_due = False

    def prefill(self, jobs: Sequence[tuple[Job, JobResult]]) -> None:
        """Have `jobs` join, for whose prompts a bucket is free; those that run stand still meanwhile."""
        began = perf_counter_ns()
        standing = {running.steps[-1] for running in self.running}
        tokenised = [self._tokenised(job, result) for job, result in jobs]
        if joining := [running for running in tokenised if running is not None]:
            self._prefill(joining)
        stood_ns = perf_counter_ns() - began
        for step in standing:
            step.stall_ns += stood_ns

    def _tokenised(self, job: Job, result: JobResult) -> Running | None:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        try:
            prompts, completions = self._generator.tokenise(job, result)
            sampler = Sampler(job, self._device)
        except Exception as error:  # noqa: BLE001 - it fails this job alone
            self._failed(error, [result])
            self._left(job, result, [])
            return None
        return Running(job, result, prompts, completions, sampler, usage)

    def _prefill(self, joining: list[Running]) -> None:
        """In the first rows, in the smallest bucket that holds their prompts, up to their first tokens."""
        self.running += joining
        self._plan = None
        prompts = [prompt for running in joining for prompt in running.prompts]
        bucket = self.rows.bucket(len(prompts))
        feed, readings = self._feeds[bucket], Readings()
        try:
            self.rows.clear(bucket)
            step = self._steps["prefill", bucket]
            found = prefill(prompts, feed, step, self._meter, readings, between=self._inbox.receive)
            ran = BatchStep("prefill", bucket, len(prompts), readings)
            first = 0
            for running in joining:
                self.rows.take(running, first)
                first += len(running.prompts)
                running.steps.append(ran)
                running.result.padded_prompt_tokens = found.padded
            tokens = choose(joining, found.logits, found.greedy, readings)
            values = self._meter.fetch(self._meter.copy(tokens), readings)
        except Exception as error:  # noqa: BLE001 - it fails these jobs alone
            self._break_off(error, joining)
            return
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        now_ns = perf_counter_ns()
        for running in joining:
            running.result.prefill.minor_faults = faults - running.usage.ru_minflt
            running.result.first_token_ns = now_ns
            for row in running.rows:
                self.rows.tokens[row] = values[row]
        self._postprocess(joining, values, now_ns)

    def step(self) -> None:
        """Schedule, run, postprocess: one decode step of all that run; where it fails, all leave."""
        readings = Readings()
        try:
            plan = self._schedule()
            plan.feed.put_rows(self.rows.tokens, self.rows.positions, readings)
            logits, greedy = self._meter.run(plan.step, plan.arguments, readings)
            tokens = choose(plan.choosing, logits, greedy, readings)
            values = self._meter.fetch(self._meter.copy(tokens), readings)
        except Exception as error:  # noqa: BLE001 - it fails these jobs alone
            self._break_off(error, list(self.running))
            return
        ran = BatchStep("decode", plan.bucket, self.rows.taken, readings)
        for running in self.running:
            running.steps.append(ran)
            running.result.attended_tokens = plan.reach
            self.rows.advance(running, values)
        self._postprocess(list(self.running), values, perf_counter_ns())

    def _schedule(self) -> DecodePlan:
        """All that run, in the smallest bucket that holds their rows."""
        used = max(self.rows.positions) + 1
        if self._plan is None or used > self._plan.reach:
            bucket = self.rows.compact()
            feed, step = self._feeds[bucket], self._steps["decode", bucket]
            reach = feed.buffers.reach(used)
            arguments = feed.buffers.arguments("decode", reach=reach)
            choosing = [running for running in self.running if running.sampler.looks_at_logits]
            self._plan = DecodePlan(bucket, feed, reach, step, arguments, choosing)
        return self._plan

    def _postprocess(self, those: Sequence[Running], values: list[int], now_ns: int) -> None:
        """Each of `those` takes its tokens of `values` [bucket]; who is complete, late or cancelled leaves.

        What has arrived is received every other time: a poll takes microseconds even where nothing has.
        """
        self._poll_due = not self._poll_due
        if self._poll_due:
            self._inbox.receive()
        for running in those:
            job, completions = running.job, running.completions
            try:
                examined = completions.take_in([values[row] for row in running.rows])
                if examined:
                    self._generator.stream(job, examined)
            except Exception as error:  # noqa: BLE001 - it fails this job alone
                self._break_off(error, [running])
                continue
            if examined and completions.complete:
                self._leave(running)
            elif now_ns > job.deadline_ns:
                self._leave(running, "timeout")
            elif self._inbox.is_cancelled(job):
                self._leave(running, "cancelled")

    def _leave(self, running: Running, kind: OutcomeKind | None = None) -> None:
        self.running.remove(running)
        self.rows.release(running)
        self._plan = None
        result = running.result
        result.kind = kind or result.kind
        result.bucket = max((step.bucket for step in running.steps), default=result.bucket)
        result.ended_ns = perf_counter_ns()
        now = resource.getrusage(resource.RUSAGE_THREAD)
        result.involuntary_switches = now.ru_nivcsw - running.usage.ru_nivcsw
        result.decode.minor_faults = now.ru_minflt - running.usage.ru_minflt - result.prefill.minor_faults
        self._generator.stream(running.job, running.completions.end())
        self._left(running.job, result, running.steps)

    def _break_off(self, error: Exception, those: Sequence[Running]) -> None:
        """`those` leave, because something that was theirs alone has failed."""
        self._failed(error, [running.result for running in those])
        for running in those:
            self._leave(running)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What decode steps share until a job joins or leaves, or the cache is read further: it is slow to make.

    `choosing` may take another token than the greedy one.
    """

    bucket: int
    feed: HostFeed
    reach: int
    step: Step
    arguments: Arguments
    choosing: list[Running]


@dataclass(slots=True, eq=False)
class Running:
    """A job that runs, its prompts' token ids, and their rows of the cache; `usage` of when it joined."""

    job: Job
    result: JobResult
    prompts: list[list[int]]
    completions: Completions
    sampler: Sampler
    usage: resource.struct_rusage
    rows: list[int] = field(default_factory=list)
    steps: list[BatchStep] = field(default_factory=list)
    _indices: tuple[list[int], Tensor] | None = None

    def indices(self, device: torch.device) -> Tensor:
        """Its rows, int64 [prompts] on `device`; copied there once, until they move."""
        if self._indices is None or self._indices[0] != self.rows:
            rows = torch.tensor(self.rows, pin_memory=device.type == "cuda")
            self._indices = list(self.rows), rows.to(device, non_blocking=True)
        return self._indices[1]


class Rows:
    """Who has which row of the cache, and the token and position that each row is fed with next.

    All buckets begin at row 0, so taken rows are kept at the beginning, and a prefill has the first rows to
    itself: `move` copies positions of a row to another. A free row is fed with token 0 at position 0.
    """

    def __init__(self, buckets: Sequence[int], move: Callable[[int, int, int], None]) -> None:
        self._buckets = sorted(buckets)
        self._move = move
        self._owners: list[Running | None] = [None] * self._buckets[-1]
        self.tokens = [0] * self._buckets[-1]
        self.positions = [0] * self._buckets[-1]
        self.taken = 0

    @property
    def free(self) -> int:
        return len(self._owners) - self.taken

    def bucket(self, rows: int) -> int:
        """The smallest bucket of at least `rows`."""
        return next(bucket for bucket in self._buckets if bucket >= rows)

    def clear(self, bucket: int) -> None:
        """Move who is in the first `bucket` rows out of them; so many are free."""
        for row in range(bucket):
            if self._owners[row] is not None:
                self._shift(row, self._owners.index(None, bucket))

    def compact(self) -> int:
        """Move all taken rows into the smallest bucket that holds them; returns that bucket."""
        bucket = self.bucket(self.taken)
        for row in range(bucket, len(self._owners)):
            if self._owners[row] is not None:
                self._shift(row, self._owners.index(None))
        return bucket

    def take(self, running: Running, first: int) -> None:
        """The rows from `first` on, one per prompt, which have been prefilled."""
        running.rows = list(range(first, first + len(running.prompts)))
        for row, prompt in zip(running.rows, running.prompts, strict=True):
            self._owners[row] = running
            self.positions[row] = len(prompt)
        self.taken += len(running.rows)

    def release(self, running: Running) -> None:
        for row in running.rows:
            self._owners[row] = None
            self.tokens[row] = self.positions[row] = 0
        self.taken -= len(running.rows)

    def advance(self, running: Running, values: Sequence[int]) -> None:
        """A step has fed its rows; they are fed with those of `values` [bucket] next."""
        for row in running.rows:
            self.tokens[row] = values[row]
            self.positions[row] += 1

    def _shift(self, row: int, to: int) -> None:
        owner = self._owners[row]
        assert owner is not None
        self._move(row, to, self.positions[row])
        owner.rows[owner.rows.index(row)] = to
        self._owners[to], self._owners[row] = owner, None
        for values in (self.tokens, self.positions):
            values[to], values[row] = values[row], 0


def choose(those: Sequence[Running], logits: Tensor, greedy: Tensor, readings: Readings) -> Tensor:
    """The next tokens, int64 [bucket]: each of `those` by its own sampler as if alone, or the greedy ones."""
    began = perf_counter_ns()
    tokens = greedy
    for running in those:
        if running.sampler.looks_at_logits:
            tokens = greedy.clone() if tokens is greedy else tokens
            rows = running.indices(greedy.device)
            own = logits.index_select(0, rows), greedy.index_select(0, rows)
            tokens.index_copy_(0, rows, running.sampler.choose(*own, Readings()))
    readings.sampling.append(0 if tokens is greedy else perf_counter_ns() - began)
    return tokens
