"""Chooses the requests that run under the profiler, and estimates the others' kernel times from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns, time

import torch

from service.engine.job_result import JobResult
from service.engine.kernel_times import KernelTimes
from service.engine.profile_schedule import ProfileSchedule
from service.engine.timings import StepEstimates
from service.protocol.messages import Job, Phase
from service.protocol.splits import SampleCounts
from service.protocol.timings import StepProfile
from service.step.meters import Meter
from service.step.profiling import STEPS_PER_TRACE, Profiler
from service.step.trace import ProfiledStep

PHASES: tuple[Phase, ...] = ("prefill", "decode")


class RequestProfiler:
    """Profiles requests whose turn it is (`ProfileSchedule`), and any that requests it.

    `used` says whether the profiler has run, which on CUDA may slow all that follows. On CUDA no turn comes
    before that, so that every mode can be measured without it first.
    """

    def __init__(self, device: torch.device, every: int | None, traces_folder: Path) -> None:
        self._cuda = device.type == "cuda"
        self._schedule = ProfileSchedule(every, self._cuda)
        self._profiler = Profiler(device, traces_folder)
        self.kernel_times = KernelTimes()
        self.used = False

    def warm(self) -> None:
        """Run the profiler, unless it has run already: its first use takes seconds."""
        if not self.used:
            self.used = True
            self._profiler.warm()

    def is_due(self, job: Job) -> bool:
        """Whether `job` is to be profiled. Counts jobs: call it once for each."""
        turn = self._schedule.is_due()
        return job.profile or (turn and (self.used or not self._cuda))

    def profile(
        self, job: Job, result: JobResult, meter: Meter, action: Callable[[Meter], None]
    ) -> list[StepProfile]:
        """Run `action` under the profiler and keep its kernel times; returns a profile per phase that ran.

        None of them where the trace could not be written: the job was slowed, and nothing is known of it.
        """
        about = {
            "request_id": job.request_id,
            "mode": job.mode,
            "batch_size": len(job.prompts),
            "created": time(),
        }
        self.used = True
        began = perf_counter_ns()
        steps = self._profiler.run(job.id, about, meter, action)
        self._schedule.took((perf_counter_ns() - began) / 1e9)
        if not steps:
            return []
        by_phase = dict(zip(PHASES, _split(steps, result.prefill.steps), strict=True))
        for phase, recorded in by_phase.items():
            seen = [step.kernel_seconds for step in recorded if step.kernel_seconds is not None]
            self.kernel_times.add(job.mode, phase, result.bucket, [median(seen)] if seen else [])
        return [summary(phase, recorded) for phase, recorded in by_phase.items() if recorded]

    def estimates(
        self, job: Job, result: JobResult, newest: Mapping[Phase, SampleCounts | None]
    ) -> StepEstimates:
        """Costs per step of `job`: from its own profile if that has all kernels, else from earlier ones."""
        usual = self.usual_estimates(job.mode, result.bucket, newest)
        own = result.profile or []
        complete = bool(own) and covered(result) and all(entry.kernel_steps == entry.steps for entry in own)
        if not complete:
            return usual
        per_step = dict(usual.kernel_per_step_seconds)
        per_step |= {entry.phase: entry.kernel_seconds for entry in own}
        return StepEstimates(self._cuda, newest, per_step, "profiled")

    def usual_estimates(
        self, mode: str, bucket: int, newest: Mapping[Phase, SampleCounts | None]
    ) -> StepEstimates:
        """Costs per step of `mode` in `bucket`, from earlier profiled requests."""
        per_step = {phase: self.kernel_times.per_step(mode, phase, bucket) for phase in PHASES}
        return StepEstimates(self._cuda, newest, per_step, "sampled")


def covered(result: JobResult) -> bool:
    """Whether all steps of a profiled job fit into its trace."""
    return result.prefill.steps + result.decode.steps <= STEPS_PER_TRACE


def totals(result: JobResult) -> tuple[int | None, int | None]:
    """Kernels and launch calls of the whole request; None where not all of it is known, or on a CPU."""
    profile = result.profile
    if not profile or not covered(result):
        return None, None
    counts = [entry.steps for entry in profile]

    def total(values: list[float | None]) -> int | None:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return round(sum(value * count for value, count in zip(known, counts, strict=True)))

    kernels = [entry.kernels if entry.kernel_steps == entry.steps else None for entry in profile]
    return total(kernels), total([entry.launches for entry in profile])


def summary(phase: Phase, steps: Sequence[ProfiledStep]) -> StepProfile:
    """Means per step over `steps`, at least one; what this device cannot measure stays None."""

    def mean(values: Sequence[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return sum(measured) / len(measured) if measured else None

    return StepProfile(
        phase=phase,
        steps=len(steps),
        operators=median(step.operators for step in steps),
        copies=median(step.copies for step in steps),
        kernels=mean([step.kernels for step in steps]),
        kernel_steps=sum(step.kernel_seconds is not None for step in steps),
        launches=mean([step.launches for step in steps]),
        graph_launches=mean([step.graph_launches for step in steps]),
        kernel_seconds=mean([step.kernel_seconds for step in steps]),
        idle_seconds=mean([step.gaps.idle_seconds if step.gaps else None for step in steps]),
        host_wait_seconds=mean([step.gaps.host_wait_seconds if step.gaps else None for step in steps]),
        kernel_wait_seconds=mean([step.gaps.kernel_wait_seconds if step.gaps else None for step in steps]),
    )


def _split(steps: list[ProfiledStep], prefill: int) -> tuple[list[ProfiledStep], list[ProfiledStep]]:
    return steps[:prefill], steps[prefill:]
