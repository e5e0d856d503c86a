"""Requests that run together in the rows of one cache: they join and leave between two decode steps."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

import torch
from torch import Tensor

from service.engine.batching.shared_timings import BatchStep
from service.engine.generation import BucketInputs, Generator, JobChannel, prefill
from service.engine.job_result import JobResult
from service.engine.text import Completions
from service.records import Job, OutcomeKind, Phase
from service.step.buffers import Arguments, copy_row
from service.step.callables import Step
from service.step.device_errors import is_device_lost
from service.step.meters import Meter, Readings
from service.step.sampling import Sampler

Left = Callable[[Job, JobResult, Sequence[BatchStep]], None]
"""Called with each job that has ended, whatever has ended it, and the steps that it ran in."""


@dataclass(slots=True, eq=False)
class Running:
    """A job that runs: the token ids of its prompts, and their rows of the cache, in the same order.

    `usage` is that of the engine's thread when it joined.
    """

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

    All buckets begin at row 0 of the cache, so taken rows are kept at its beginning, and a prefill has the
    first rows to itself: `move` copies so many positions of a row to another. A free row is fed with token 0
    at position 0, so that it attends to nothing but itself.
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
        """How many are not taken."""
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
        """Its rows are free again."""
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


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """What decode steps have in common until somebody joins or leaves, or the cache is read further.

    Looked up in every step, it takes longer than all else between two steps. `choosing` may take another
    token than the greedy one.
    """

    bucket: int
    inputs: BucketInputs
    reach: int
    step: Step
    arguments: Arguments
    choosing: list[Running]


class Batch:
    """Runs jobs of one mode. `left` is called with each that ends; before that `failed` with what a job's
    arguments raised, or its text, or a step for all that were in it.

    What loses the device's context is raised by all methods that run something.
    """

    def __init__(
        self,
        generator: Generator,
        steps: Mapping[tuple[Phase, int], Step],
        meter: Meter,
        channel: JobChannel,
        left: Left,
        failed: Callable[[Exception, list[JobResult]], None],
    ) -> None:
        self._generator = generator
        self._steps = steps
        self._meter = meter
        self._channel = channel
        self._left = left
        self._failed = failed
        self._inputs = generator.inputs
        largest = self._inputs[max(self._inputs)].buffers
        self._device = largest.token.device
        self.rows = Rows(list(self._inputs), partial(copy_row, largest.cache))
        self.running: list[Running] = []
        self._plan: DecodePlan | None = None
        self._poll_due = False

    def prefill(self, jobs: Sequence[tuple[Job, JobResult]]) -> None:
        """Have `jobs` join, for whose prompts a bucket is free; those that run stand still meanwhile.

        A job that cannot run with its arguments leaves at once, with the reason in its result.
        """
        began = perf_counter_ns()
        standing = {running.steps[-1] for running in self.running}
        tokenised = [self._tokenised(job, result) for job, result in jobs]
        joining = [running for running in tokenised if running is not None]
        if joining:
            self._prefill(joining)
        stood_ns = perf_counter_ns() - began
        for step in standing:
            step.stall_ns += stood_ns

    def _tokenised(self, job: Job, result: JobResult) -> Running | None:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        try:
            prompts, completions = self._generator.tokenise(job, result)
            sampler = Sampler(job, self._device, self._generator.tokenizer.ends)
        except Exception as error:
            if is_device_lost(error):
                raise
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
        inputs, readings = self._inputs[bucket], Readings()
        try:
            self.rows.clear(bucket)
            step = self._steps["prefill", bucket]
            found = prefill(prompts, inputs, step, self._meter, readings, between=self._channel.receive)
            ran = BatchStep("prefill", bucket, len(prompts), readings)
            first = 0
            for running in joining:
                self.rows.take(running, first)
                first += len(running.prompts)
                running.steps.append(ran)
                running.result.padded_prompt_tokens = found.padded
            tokens = choose(joining, found.logits, found.greedy, readings)
            values = self._meter.fetch(tokens, readings)
        except Exception as error:
            if is_device_lost(error):
                raise
            self._break_off(error, joining)
            return
        faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        now_ns = perf_counter_ns()
        for running in joining:
            running.result.prefill.minor_faults = faults - running.usage.ru_minflt
            running.result.first_token_ns = now_ns
            for row in running.rows:
                self.rows.tokens[row] = values[row]
        self._hand_out(joining, values, now_ns)

    def step(self) -> None:
        """One decode step of all that run, of which there is at least one; where it fails, all leave."""
        readings = Readings()
        try:
            plan = self._decode_plan()
            plan.inputs.feed.put_rows(self.rows.tokens, self.rows.positions, readings)
            logits, greedy = self._meter.run(plan.step, plan.arguments, readings)
            tokens = choose(plan.choosing, logits, greedy, readings)
            values = self._meter.fetch(tokens, readings)
        except Exception as error:
            if is_device_lost(error):
                raise
            self._break_off(error, list(self.running))
            return
        ran = BatchStep("decode", plan.bucket, self.rows.taken, readings)
        for running in self.running:
            running.steps.append(ran)
            running.result.attended_tokens = plan.reach
            self.rows.advance(running, values)
        self._hand_out(list(self.running), values, perf_counter_ns())

    def _decode_plan(self) -> DecodePlan:
        """In the smallest bucket that holds all rows."""
        used = max(self.rows.positions) + 1
        if self._plan is None or used > self._plan.reach:
            bucket = self.rows.compact()
            inputs = self._inputs[bucket]
            reach = inputs.buffers.reach(used)
            self._plan = DecodePlan(
                bucket=bucket,
                inputs=inputs,
                reach=reach,
                step=self._steps["decode", bucket],
                arguments=inputs.buffers.arguments("decode", reach=reach),
                choosing=[running for running in self.running if running.sampler.looks_at_logits],
            )
        return self._plan

    def _hand_out(self, those: Sequence[Running], values: list[int], now_ns: int) -> None:
        """Each of `those` takes its tokens of `values` [bucket]; who is complete, late or cancelled leaves.

        What has arrived is received every other time: a look takes microseconds even where nothing has.
        """
        self._poll_due = not self._poll_due
        if self._poll_due:
            self._channel.receive()
        for running in those:
            job, completions = running.job, running.completions
            try:
                examined = completions.take_in([values[row] for row in running.rows])
                if examined:
                    self._generator.stream(job, examined)
            except Exception as error:
                if is_device_lost(error):
                    raise
                self._break_off(error, [running])
                continue
            if examined and completions.complete:
                self._leave(running)
            elif now_ns > job.deadline_ns:
                self._leave(running, "timeout")
            elif self._channel.is_cancelled(job):
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


def choose(those: Sequence[Running], logits: Tensor, greedy: Tensor, readings: Readings) -> Tensor:
    """The next tokens, int64 [bucket]: who samples does it by its own sampler as if it were alone, all others
    take the greedy ones.

    One entry of `readings.sampling` for all of them, the copies from and to their rows included.
    """
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
