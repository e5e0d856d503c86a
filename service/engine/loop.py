"""The engine's loop: receive, run, answer. Its process's main thread makes every torch call there is."""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter_ns

import msgspec
import torch

from service.engine.batching import Scheduler
from service.engine.compiler import CacheBroken
from service.engine.inbox import Inbox, LocalInbox
from service.engine.job import JobResult
from service.engine.job_runner import PIECE_SECONDS, JobRunner, not_ready
from service.engine.kernel_process import kernel_process
from service.engine.outcome import StepEstimates, build_outcome, timings
from service.engine.parts import build_parts
from service.engine.profiler import DeviceMeasurements, RequestProfiler
from service.engine.second_compiler import second_compiler
from service.engine.start_times import START
from service.engine.warmup import Warmup
from service.machine import pin
from service.records import Doing, EngineSettings, Job
from service.step.compile_cache import code_of, discard
from service.step.device import is_device_lost, memory, sharing_note
from service.step.device_time import CudaQueue
from service.step.graphs import forbid_recompilation
from service.step.meters import new_meter
from service.step.parity import Unservable
from service.step.process_state import prepare_process

EXIT_BAD_SETTINGS, EXIT_DEVICE_LOST, EXIT_CACHE_DISCARDED = 2, 4, 5
"""For settings or a model that cannot work, a device that is lost, and compiled code that was removed."""

LOAD_SECONDS = 3600.0
"""How long loading a model may take: gigabytes may come from a hub."""

SLOWER = 4.0
"""A request's step may take so many times what eager's reference took, which has steps of every batch."""

IDLE_WAIT_MILLISECONDS = 250

NEWS_SECONDS = 1.0
"""Least time between two announcements of what has changed."""

SHARING_SECONDS = 10.0
"""Least time between two looks at who else uses the device: one takes the driver up to milliseconds."""


def run_engine(settings: EngineSettings, inbox: Inbox | LocalInbox) -> int:
    """Serve until a Stop; returns the exit code: 0, or one of those above."""
    from_hub = settings.model.startswith("hf:")
    inbox.announce(Doing(what="loading the model", limit_seconds=LOAD_SECONDS, may_wait=from_hub))
    try:
        if settings.discard_compiled:
            discard(code_of(settings.cache_folder, settings.model))
        with START.phase("weights"):
            prepare_process(settings.cache_folder, settings.model)
            engine = Engine(settings, inbox, retries_cache=True)
    except ValueError as error:
        return _refuse(error)
    try:
        engine.parts.warmup.start_elsewhere = partial(second_compiler, engine.parts)
        engine.run()
    except Unservable as error:
        return _refuse(error)
    except CacheBroken as error:
        traceback.print_exception(error)
        return EXIT_CACHE_DISCARDED
    except RuntimeError as error:
        if not is_device_lost(error):
            raise
        traceback.print_exception(error)
        return EXIT_DEVICE_LOST
    return 0


def _refuse(error: ValueError) -> int:
    print(f"launchbound engine: {error}", file=sys.stderr)
    return EXIT_BAD_SETTINGS


class Engine:
    """An engine: its parts, and the loop that serves with them.

    `retries_cache`: a mode that fails on compiled code of an earlier start ends `run` by CacheBroken.
    """

    def __init__(
        self, settings: EngineSettings, inbox: Inbox | LocalInbox, retries_cache: bool = False
    ) -> None:
        self._inbox = inbox
        self.parts = parts = build_parts(settings, inbox.send, retries_cache)
        device, warmup, shares = parts.loaded.device, parts.warmup, parts.shares
        meter = new_meter(device, max(parts.workload.inputs), settings.instrumentation, shares.labels)
        self._kind, self._jobs = parts.workload.kind, parts.workload.jobs(inbox)
        traces = Path(settings.cache_folder) / "traces"
        self._profiler = RequestProfiler(device, settings.profile_every, traces)
        self._runner = JobRunner(self._jobs, self._profiler, shares, meter, warmup, inbox.announce)
        self._scheduler: Scheduler | None = None
        if settings.batching != "off":
            self._scheduler = Scheduler(
                inbox, self._runner, self._serve, self._usual_estimates, self._announce_news
            )
        queue = CudaQueue() if device.type == "cuda" else None
        start = partial(kernel_process, settings)
        self._device = DeviceMeasurements(
            warmup, parts.workload.inputs, self._profiler, queue, start, self._kind
        )
        self._profiler.before_first = self._device.attach
        self._busy_until_ns = self._announced_ns = self._looked_ns = perf_counter_ns()
        self._status = parts.status()

    @torch.no_grad()
    def run(self) -> None:
        """Serve until a Stop arrives; modes become ready one after another meanwhile."""
        self._inbox.send(self._status)
        warmup = self.parts.warmup
        start = chain(warmup.run(), self._measuring())
        for _ in announced(start, warmup, self._inbox):
            with START.phase("rest"):
                self._busy_until_ns = perf_counter_ns()
                self._device.follow()
                self._inbox.receive()
                self._serve_waiting()
                self.parts.shares.rest()
                self._wait_while_paused()
            if self._inbox.stopped:
                return
        self._busy_until_ns = perf_counter_ns()
        while not self._inbox.stopped:
            self._serve_waiting()
            self._wait_while_paused()
            if self._inbox.idle:
                self._inbox.receive(IDLE_WAIT_MILLISECONDS)
                if self._inbox.idle:
                    self.parts.shares.rest()

    def _measuring(self) -> Iterator[None]:
        with START.phase("measuring"):
            yield from self._settle()

    def _settle(self) -> Iterator[None]:
        """Freeze what must not change any more, then sample the steps of all modes, which serve."""
        if self.parts.loaded.device.type == "cpu":
            self._profiler.warm()
        forbid_recompilation()
        pin(self.parts.loaded.cpus)
        # Before the first requests of its own, which leave the allocators as those of clients need them.
        measured = self.parts.measure()
        self._runner.warm()
        gc.collect()
        gc.freeze()
        yield from self._device.learn()
        yield from self.parts.warmup.sample()
        self._status = msgspec.structs.replace(
            self.parts.status(measured),
            profiler_note=self._device.profiler_note,
            sharing_note=sharing_note(self.parts.loaded.device, os.getpid()),
            no_device_times=self._device.missing,
        )
        self._inbox.send(self._status)

    def _wait_while_paused(self) -> None:
        """Leave the machine to the anatomy process while a pause holds; what arrives meanwhile waits."""
        while self._inbox.paused and not self._inbox.stopped:
            self.parts.shares.rest()
            self._inbox.receive(IDLE_WAIT_MILLISECONDS)
            self._busy_until_ns = perf_counter_ns()

    def _serve_waiting(self) -> None:
        """Run every job that was received, one after another; each keeps those behind it waiting."""
        while not self._inbox.stopped and (job := self._inbox.take()) is not None:
            if self._scheduler is not None:
                self._scheduler.serve(job, self._busy_until_ns)
            else:
                self._serve(job)
            self._announce_news()
            self._busy_until_ns = perf_counter_ns()
            self._inbox.receive()
        self._announce_news()

    def _serve(self, job: Job) -> None:
        """Run `job`, unless it can no longer start, and answer it: exactly one Outcome per job."""
        result = JobResult(taken_ns=perf_counter_ns(), workload=self._kind)
        result.queue_ns = max(0, self._busy_until_ns - job.sent_ns)
        modes = self.parts.warmup.modes
        configured = modes.get(job.mode)
        if result.taken_ns > job.deadline_ns:
            result.kind = "timeout"
        elif self._inbox.is_cancelled(job):
            result.kind = "cancelled"
        elif configured is None or configured.status.state != "ready":
            result.fail(not_ready(job.mode, modes))
        else:
            self._runner.run(job, configured, result)
        sizes = self._jobs.sizes(result)
        newest = {
            phase: self.parts.shares.newest(job.mode, phase, result.bucket, sizes.get(phase))
            for phase in self._kind.phases
        }
        estimates = self._profiler.estimates(job, result, newest)
        self._inbox.send(build_outcome(job, result, configured, partial(timings, result, estimates)))

    def _usual_estimates(self, mode: str, bucket: int) -> StepEstimates:
        newest = {phase: self.parts.shares.newest(mode, phase, bucket) for phase in self._kind.phases}
        return self._profiler.usual_estimates(mode, bucket, newest)

    def _announce_news(self) -> None:
        """Send what changed of splits, and of a device's memory and users, at most once in NEWS_SECONDS."""
        now_ns = perf_counter_ns()
        if not self._status.warm or now_ns - self._announced_ns < NEWS_SECONDS * 1e9:
            return
        self._announced_ns = now_ns
        self.parts.shares.collect()
        self.parts.warmup.announce_splits()
        device, note = self.parts.loaded.device, self._status.sharing_note
        if now_ns - self._looked_ns >= SHARING_SECONDS * 1e9:
            self._looked_ns = now_ns
            note = sharing_note(device, os.getpid())
        status = msgspec.structs.replace(
            self._status,
            memory=memory(device),
            profiler_note=self._device.profiler_note,
            sharing_note=note,
        )
        if status != self._status:
            self._status = status
            self._inbox.send(status)
        self._busy_until_ns = perf_counter_ns()


def announced(work: Iterator[None], warmup: Warmup, inbox: Inbox | LocalInbox) -> Iterator[None]:
    """The warm-up's `work`, each piece of it announced: what follows a yield is again a matter of steps."""
    while True:
        inbox.announce(Doing(what=warmup.doing, limit_seconds=PIECE_SECONDS))
        try:
            next(work)
        except StopIteration:
            return
        inbox.expect_steps_of(SLOWER * warmup.reference_seconds)
        yield
