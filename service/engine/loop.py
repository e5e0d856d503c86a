"""The engine's loop: receive, run, answer. Its process's main thread makes every torch call there is."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from time import perf_counter_ns

import msgspec
import torch

from service.engine.announcements import announced
from service.engine.batching.scheduler import Scheduler
from service.engine.device_measurements import new_device_measurements
from service.engine.generation import Generator
from service.engine.inbox import Inbox
from service.engine.job_result import JobResult
from service.engine.job_runner import JobRunner, not_ready
from service.engine.local_inbox import LocalInbox
from service.engine.outcome import StepEstimates, build_outcome, timings
from service.engine.parts import build_parts
from service.engine.request_profiler import RequestProfiler
from service.machine import pin
from service.records import PHASES, EngineSettings, Job, Phase
from service.step.device import memory
from service.step.marking import with_nvtx
from service.step.meters import new_meter
from service.step.recompilation import forbid_recompilation

IDLE_WAIT_MILLISECONDS = 250

NEWS_SECONDS = 1.0
"""Least time between two looks at what has changed."""


class Engine:
    """An engine: its parts, and the loop that serves with them.

    `retries_cache`: a mode that fails on compiled code of an earlier start ends `run` by CacheBroken, for
    another process to try again without it. Else it fails like any other.
    """

    def __init__(
        self, settings: EngineSettings, inbox: Inbox | LocalInbox, retries_cache: bool = False
    ) -> None:
        self._inbox = inbox
        self.parts = parts = build_parts(settings, inbox.send, retries_cache)
        self._shares = shares = parts.shares
        meter = new_meter(parts.loaded.device, max(parts.buffers), settings.instrumentation, shares.labels)
        if settings.nvtx:
            meter = with_nvtx(meter, parts.loaded.device)
        generator = Generator(parts.tokenizer, parts.buffers, parts.loaded.model.config.context, inbox)
        traces_folder = Path(settings.cache_folder) / "traces"
        self._profiler = RequestProfiler(parts.loaded.device, settings.profile_every, traces_folder)
        self._runner = JobRunner(generator, self._profiler, shares, meter, parts.warmup, inbox.announce)
        self._scheduler = Scheduler(
            inbox,
            settings,
            generator,
            meter,
            self._runner,
            parts.warmup,
            self._serve,
            self._usual_estimates,
            self._announce_news,
            sampling=shares.sampling,
        )
        self._run_job: Callable[[Job], None] = self._serve
        if settings.batching != "off":
            self._run_job = lambda job: self._scheduler.serve(job, self._busy_until_ns)
        self._device = new_device_measurements(
            parts.loaded.device, parts.warmup, parts.buffers, self._profiler
        )
        self._busy_until_ns = self._announced_ns = perf_counter_ns()
        self._status = parts.status()

    @torch.no_grad()
    def run(self) -> None:
        """Serve until a Stop arrives; modes become ready one after another meanwhile."""
        self._inbox.send(self._status)
        for _ in announced(self._start(), self.parts.warmup, self._inbox):
            self._busy_until_ns = perf_counter_ns()
            self._serve_waiting()
            self._wait_while_paused()
            if self._inbox.stopped:
                return
        self._busy_until_ns = perf_counter_ns()
        while not self._inbox.stopped:
            self._serve_waiting()
            self._wait_while_paused()
            if self._inbox.idle:
                self._inbox.receive(IDLE_WAIT_MILLISECONDS)

    def _start(self) -> Iterator[None]:
        """Make modes ready; the profiler is not attached before all have been measured without it."""
        warmup = self.parts.warmup
        return chain(warmup.run(), self._device.attach(), warmup.finish(), self._settle())

    def _settle(self) -> Iterator[None]:
        """Freeze all that must not change any more (compiled entries, long-lived objects, cores).

        Then sample the steps of all modes: yields so that they serve meanwhile.
        """
        self._profiler.warm()
        forbid_recompilation()
        pin(self.parts.loaded.cpus)
        # Before the first requests of its own, which leave the allocators as those of clients need them.
        measured = self.parts.measure()
        self._runner.warm(self.parts.warmup.ready(), list(self.parts.buffers))
        if self.parts.settings.batching != "off":
            self._scheduler.warm()
        gc.collect()
        gc.freeze()
        yield from self._device.learn()
        yield from self.parts.warmup.sample()
        self._status = msgspec.structs.replace(
            self.parts.status(measured),
            profiler_note=self._device.profiler_note,
            no_device_times=self._device.missing,
        )
        self._inbox.send(self._status)

    def _wait_while_paused(self) -> None:
        """Leave the machine to the anatomy process while a pause holds; what arrives meanwhile waits."""
        while self._inbox.paused and not self._inbox.stopped:
            self._inbox.receive(IDLE_WAIT_MILLISECONDS)
            self._busy_until_ns = perf_counter_ns()

    def _serve_waiting(self) -> None:
        """Run every job that has arrived, one after another; each keeps those behind it waiting."""
        self._inbox.receive()
        while not self._inbox.stopped and (taken := self._inbox.take()) is not None:
            self._run_job(taken)
            self._announce_news()
            self._busy_until_ns = perf_counter_ns()
            self._inbox.receive()
        self._announce_news()

    def _serve(self, job: Job) -> None:
        """Run `job`, unless it can no longer start, and answer it: exactly one Outcome per job."""
        result = JobResult(taken_ns=perf_counter_ns())
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
        chunk = min(result.padded_prompt_tokens, self.parts.settings.prefill_chunk)
        sizes: dict[Phase, int] = {"prefill": chunk, "decode": result.attended_tokens}
        newest = {
            phase: self._shares.newest(job.mode, phase, result.bucket, sizes[phase]) for phase in PHASES
        }
        estimates = self._profiler.estimates(job, result, newest)
        self._inbox.send(build_outcome(job, result, configured, partial(timings, result, estimates)))

    def _usual_estimates(self, mode: str, bucket: int) -> StepEstimates:
        newest = {phase: self._shares.newest(mode, phase, bucket) for phase in PHASES}
        return self._profiler.usual_estimates(mode, bucket, newest)

    def _announce_news(self) -> None:
        """Send what changed of splits and of a device's memory; looks at most once in NEWS_SECONDS."""
        now_ns = perf_counter_ns()
        if not self._status.warm or now_ns - self._announced_ns < NEWS_SECONDS * 1e9:
            return
        self._announced_ns = now_ns
        self._shares.collect()
        self.parts.warmup.announce_splits()
        if self._status.memory is not None:
            current = memory(self.parts.loaded.device)
            if current != self._status.memory:
                self._status = msgspec.structs.replace(self._status, memory=current)
                self._inbox.send(self._status)
        self._busy_until_ns = perf_counter_ns()
