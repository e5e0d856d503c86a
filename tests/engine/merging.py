"""A queue that jobs reach at given steps, and a scheduler over the real `tiny` that serves it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from typing import cast

import msgspec
import torch

from models.checkpoint import TINY_FOLDER, Checkpoint
from models.tokenizer import Tokenizer
from service.engine.batching import Scheduler
from service.engine.generation import Generator
from service.engine.inbox import Inbox
from service.engine.job import JobResult
from service.engine.job_runner import JobRunner
from service.engine.outcome import StepEstimates, build_outcome, timings
from service.engine.step_shares import StepShares
from service.engine.warmup import ConfiguredMode, Warmup
from service.modes import MODES
from service.records import Begun, Job, ModeStatus, Outcome, Token
from service.step.buffers import Arguments, allocate
from service.step.callables import Step, build_step
from service.step.meters import HostMeter, Meter, Readings

MODE_NAMES = ("eager", "inference_mode")
ESTIMATES = StepEstimates(False, {"prefill": None, "decode": None}, {}, "sampled")
UNSAMPLED = StepShares(Path(), missing="nothing is sampled here")


def estimates(mode: str, bucket: int) -> StepEstimates:
    """Of any mode and bucket; tests of splits set others."""
    return ESTIMATES


@dataclass
class ArrivingQueue:
    """Jobs that arrive when so many steps have run, and cancellations likewise; messages that were sent."""

    arrivals: dict[int, list[Job]] = field(default_factory=dict)
    cancellations: dict[int, set[str]] = field(default_factory=dict)
    waiting: deque[Job] = field(default_factory=deque)
    cancelled: set[str] = field(default_factory=set)
    sent: list[Begun | Token | Outcome] = field(default_factory=list)
    steps: int = 0
    stopped: bool = False

    def receive(self, timeout_milliseconds: int = 0) -> None:
        for step in [step for step in sorted(self.arrivals) if step <= self.steps]:
            jobs = self.arrivals.pop(step)
            self.waiting += [msgspec.structs.replace(job, sent_ns=perf_counter_ns()) for job in jobs]
        for step in [step for step in self.cancellations if step <= self.steps]:
            self.cancelled |= self.cancellations.pop(step)

    def take(self) -> Job | None:
        """The next job; where none waits, time passes until one does."""
        if not self.waiting and self.arrivals:
            self.steps = max(self.steps, min(self.arrivals))
        self.receive()
        return self.waiting.popleft() if self.waiting else None

    @property
    def next_job(self) -> Job | None:
        return self.waiting[0] if self.waiting else None

    def join(self) -> Job:
        return self.waiting.popleft()

    def left(self, job: Job) -> None:
        self.cancelled.discard(job.id)

    def is_cancelled(self, job: Job) -> bool:
        return job.id in self.cancelled

    def send(self, message: Begun | Token | Outcome) -> None:
        self.sent.append(message)


class CountingMeter(HostMeter):
    """Counts the steps of the queue's clock, and keeps the (rows, tokens per row) of each."""

    def __init__(self, queue: ArrivingQueue) -> None:
        super().__init__()
        self.queue = queue
        self.shapes: list[tuple[int, int]] = []

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[torch.Tensor, torch.Tensor]:
        self.queue.steps += 1
        self.shapes.append((arguments[0].shape[0], arguments[0].shape[1]))
        return super().run(step, arguments, readings)


@dataclass
class Modes:
    """As a scheduler needs them of warm-up."""

    modes: Mapping[str, ConfiguredMode]

    def update(self, configured: ConfiguredMode, **changes: object) -> None:
        configured.status = msgspec.structs.replace(configured.status, **changes)


@dataclass(frozen=True)
class Served:
    """What came of jobs: outcomes by id, all messages, and the (rows, tokens) of every step in order."""

    outcomes: dict[str, Outcome]
    queue: ArrivingQueue
    shapes: list[tuple[int, int]]

    @property
    def tokens(self) -> dict[str, list[list[int]]]:
        return {name: [o.token_ids for o in outcome.outputs] for name, outcome in self.outcomes.items()}

    @property
    def kinds(self) -> dict[str, str]:
        return {name: outcome.kind for name, outcome in self.outcomes.items()}


class TinyEngine:
    """`tiny` in two modes, with buckets 1, 2 and 4."""

    def __init__(
        self, buckets: Iterable[int] = (1, 2, 4), wrap: Callable[[Step], Step] = lambda s: s
    ) -> None:
        torch.set_num_threads(1)
        buckets = list(buckets)
        model = Checkpoint("tiny").build(max_batch=max(buckets))
        self._tokenizer = Tokenizer.load(TINY_FOLDER)
        self._buffers = allocate(model, buckets, prefill_chunk=64)
        self._context = model.config.context
        self.modes = {}
        for name in MODE_NAMES:
            status = ModeStatus(mode=name, removes="", state="ready", effective=name)
            step = wrap(build_step(MODES[name], model))
            steps = {(p, b): step for p in ("prefill", "decode") for b in buckets}
            self.modes[name] = ConfiguredMode(MODES[name], status, steps)

    def merged(
        self, arrivals: dict[int, list[Job]], cancellations: dict[int, set[str]] | None = None
    ) -> Served:
        queue = ArrivingQueue(dict(arrivals), dict(cancellations or {}))
        meter = CountingMeter(queue)
        generator = Generator(self._tokenizer, self._buffers, self._context, cast(Inbox, queue))
        warmup = cast(Warmup, Modes(self.modes))
        runner = JobRunner(generator, None, UNSAMPLED, meter, warmup, lambda _: None)

        def alone(job: Job) -> None:
            queue.send(self._outcome(generator, job, queue, meter))

        def costs(mode: str, bucket: int) -> StepEstimates:
            return estimates(mode, bucket)  # looked up when asked, as tests replace it

        scheduler = Scheduler(cast(Inbox, queue), runner, alone, costs, answered=lambda: None)
        with torch.no_grad():
            while (job := queue.take()) is not None:
                scheduler.serve(job, perf_counter_ns())
        sent = [message for message in queue.sent if isinstance(message, Outcome)]
        outcomes = {outcome.id: outcome for outcome in sent}
        assert len(outcomes) == len(sent)
        return Served(outcomes, queue, meter.shapes)

    def alone(self, job: Job) -> list[list[int]]:
        """The tokens of `job`, run by the loop that merges nothing."""
        queue = ArrivingQueue()
        generator = Generator(self._tokenizer, self._buffers, self._context, cast(Inbox, queue))
        with torch.no_grad():
            outcome = self._outcome(generator, job, queue, HostMeter())
        return [output.token_ids for output in outcome.outputs]

    def _outcome(self, generator: Generator, job: Job, queue: ArrivingQueue, meter: Meter) -> Outcome:
        configured, result = self.modes[job.mode], JobResult(taken_ns=perf_counter_ns())
        if perf_counter_ns() > job.deadline_ns:
            result.kind = "timeout"
        elif queue.is_cancelled(job):
            result.kind = "cancelled"
        else:
            generator.run(job, configured.steps, result, meter)
        return build_outcome(job, result, configured, lambda done: timings(result, ESTIMATES, done))
