"""The engine's loop: receive, run, answer. Its process's main thread makes every torch call there is."""

from __future__ import annotations

import gc
from pathlib import Path
from time import perf_counter_ns

import msgspec
import torch

from service.engine.assembly import assemble
from service.engine.generation import Generator, JobError, Run
from service.engine.inbox import Inbox
from service.engine.local_inbox import LocalInbox
from service.engine.request_profiler import RequestProfiler, ran_as, totals
from service.engine.timings import JobTimes, timings
from service.engine.warmup import ModeState
from service.protocol.messages import EngineSettings, Job, Outcome, OutcomeKind, Problem, StepProfile
from service.protocol.placement import pin
from service.step.device import memory
from service.step.meters import new_meter

CALIBRATION_SHARE = 0.01
"""At most this share of the engine's time goes into refreshing the dispatch floors."""

IDLE_WAIT_MILLISECONDS = 250

MEMORY_SECONDS = 1.0
"""How long after telling the front of its device memory the engine looks whether it moved."""


class Engine:
    """One engine life: its parts, and the loop that serves with them."""

    def __init__(self, settings: EngineSettings, inbox: Inbox | LocalInbox) -> None:
        self._inbox = inbox
        self.parts = parts = assemble(settings, inbox.send)
        self._meter = new_meter(parts.device, max(parts.buffers), settings.instrumentation)
        context = parts.model.config.context
        self._generator = Generator(parts.tokenizer, parts.buffers, context, inbox)
        self._profiler = RequestProfiler(
            parts.device, settings.profile_every, Path(settings.cache_folder) / "traces"
        )
        self._busy_until_ns = self._calibrated_ns = self._memory_ns = perf_counter_ns()
        self._calibration_seconds = 0.0
        self._status = parts.status(warm=False)

    @torch.no_grad()
    def run(self) -> None:
        """Serve until told to stop; modes become ready one after another meanwhile."""
        self._inbox.send(self._status)
        for _ in self.parts.warmup.run():
            self._busy_until_ns = perf_counter_ns()
            self._serve_waiting()
        self._settle()
        self._busy_until_ns = perf_counter_ns()
        while not self._inbox.stopped:
            self._serve_waiting()
            self._begin_pause()
            self._calibrate_in_idle_time()
            if self._inbox.idle:
                self._inbox.receive(IDLE_WAIT_MILLISECONDS)

    def _wanted(self) -> bool:
        self._inbox.receive()
        return not self._inbox.idle

    def _settle(self) -> None:
        """All that must not change any more is frozen: compiled entries, long-lived objects, cores."""
        self._profiler.warm()
        torch.compiler.set_stance("fail_on_recompile")
        gc.collect()
        gc.freeze()
        pin(self.parts.cpus, exempt=self._inbox.own_threads)
        # Floors were taken beside compilers so far, and on any core.
        self.parts.warmup.recalibrate()
        self._status = self.parts.status(warm=True)
        self._inbox.send(self._status)

    def _begin_pause(self) -> None:
        """Leave the machine to the anatomy process as long as it is told to; what arrives meanwhile waits."""
        while self._inbox.paused and not self._inbox.stopped:
            self._inbox.receive(IDLE_WAIT_MILLISECONDS)
            self._busy_until_ns = perf_counter_ns()

    def _serve_waiting(self) -> None:
        """Run every job that has arrived, one after another; each keeps those behind it waiting."""
        self._inbox.receive()
        while not self._inbox.stopped and (job := self._inbox.take()) is not None:
            self._serve(job)
            self._announce_memory()
            self._busy_until_ns = perf_counter_ns()
            self._inbox.receive()
        self._announce_memory()

    def _announce_memory(self) -> None:
        """Tell the front of device memory that moved; called between jobs, looks once a second on CUDA."""
        now_ns = perf_counter_ns()
        if self._status.memory is None or now_ns - self._memory_ns < MEMORY_SECONDS * 1e9:
            return
        self._memory_ns, held = now_ns, memory(self.parts.device)
        if held != self._status.memory:
            self._status = msgspec.structs.replace(self._status, memory=held)
            self._inbox.send(self._status)
        self._busy_until_ns = perf_counter_ns()

    def _serve(self, job: Job) -> None:
        taken_ns = perf_counter_ns()
        queue_ns = max(0, self._busy_until_ns - job.sent_ns)
        mode_state = self.parts.warmup.mode_states.get(job.mode)
        run, problem, profile = Run(), None, None
        if taken_ns > job.deadline_ns:
            run.kind = "timeout"
        elif self._inbox.is_cancelled(job):
            run.kind = "cancelled"
        elif mode_state is None or mode_state.status.state != "ready":
            run.kind, problem = "error", self._not_ready(job.mode)
        else:
            run.kind, problem, profile = self._attempt(job, mode_state, run)
        floor = self.parts.calibration.floor(job.mode, run.bucket) if run.bucket else None
        costs = self._profiler.costs(job, run, floor, profile)
        kernels, launches = totals(run, profile)
        outputs = run.rows.outputs() if run.rows else []
        effective, reason = (
            ran_as(mode_state.mode, mode_state.status, profile) if mode_state else (job.mode, None)
        )
        self._inbox.send(
            Outcome(
                id=job.id,
                mode=job.mode,
                effective=effective,
                reason=reason,
                kind=run.kind,
                problem=problem,
                batch_size=len(job.prompts),
                batch_bucket=run.bucket,
                prompt_tokens=run.prompt_tokens,
                outputs=outputs,
                timings=timings(run, costs, JobTimes(queue_ns, taken_ns, perf_counter_ns()))
                if run.bucket
                else None,
                kernels=kernels,
                launches=launches,
                profile=profile,
            )
        )

    def _attempt(
        self, job: Job, mode_state: ModeState, run: Run
    ) -> tuple[OutcomeKind, Problem | None, list[StepProfile] | None]:
        """Run `job`; a failure becomes a problem, save one that poisons the device's context."""
        try:
            profile = self._run(job, mode_state, run)
        except JobError as error:
            return "error", error.problem, None
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            message = f"the device is out of memory: send fewer prompts or tokens ({error})"
            return "oom", Problem(type="out_of_memory", message=message), None
        except torch.AcceleratorError:
            # The context is gone and so is every later call in it: the front starts a new engine.
            raise
        except Exception as error:  # noqa: BLE001 - the border of one job: the engine outlives it
            if "fail_on_recompile" in str(error):
                self.parts.warmup.update(mode_state, recompiles=mode_state.status.recompiles + 1)
            return "error", Problem(type="internal", message=f"{type(error).__name__}: {error}"[:2000]), None
        return run.kind, None, profile

    def _run(self, job: Job, mode_state: ModeState, run: Run) -> list[StepProfile] | None:
        """Run `job`, under the profiler where the sampled profiler wants it; returns its profile then."""
        if not self._profiler.wants(job):
            self._generator.run(job, mode_state.steps, run, self._meter)
            return None
        return self._profiler.profiled(
            job, run, self._meter, lambda meter: self._generator.run(job, mode_state.steps, run, meter)
        )

    def _not_ready(self, mode: str) -> Problem:
        states = {name: mode_state.status.state for name, mode_state in self.parts.warmup.mode_states.items()}
        ready = [name for name, state in states.items() if state == "ready"]
        state = states.get(mode, "not configured")
        message = f"mode '{mode}' is {state}; ready: {', '.join(ready) or 'none yet'}"
        return Problem(type="mode_not_ready", message=message, param="mode")

    def _calibrate_in_idle_time(self) -> None:
        """Refresh one floor where no job waits and the budget allows, so that floors follow the machine."""
        since_seconds = (perf_counter_ns() - self._calibrated_ns) / 1e9
        if self._inbox.idle and self._calibration_seconds <= since_seconds * CALIBRATION_SHARE:
            self._calibrated_ns = perf_counter_ns()
            self._calibration_seconds = self.parts.calibration.refresh(self._wanted)
            self.parts.warmup.announce_floors()
            self._busy_until_ns = perf_counter_ns()
