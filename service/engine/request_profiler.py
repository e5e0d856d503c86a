"""Chooses the requests that run under the profiler, and estimates the others' kernel times from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import time

import torch

from service.engine.job_result import JobResult
from service.engine.timings import StepEstimates
from service.protocol.messages import Job, Phase, StepProfile
from service.protocol.status import Floor
from service.step.meters import Meter
from service.step.profiling import STEPS_PER_TRACE, KernelTimes, Profiler
from service.step.trace import ProfiledStep

PHASES: tuple[Phase, ...] = ("prefill", "decode")


class RequestProfiler:
    """Profiles one request in `every` (none where 0), and any that requests it."""

    def __init__(self, device: torch.device, every: int, traces_folder: Path) -> None:
        self._cuda = device.type == "cuda"
        self._every = every
        self._profiler = Profiler(device, traces_folder)
        self._kernel_times = KernelTimes()
        self._jobs = 0

    def warm(self) -> None:
        """Run the profiler once: its first use takes seconds."""
        self._profiler.warm()

    def is_due(self, job: Job) -> bool:
        """Whether `job` is to be profiled. Counts jobs: call it once for each."""
        self._jobs += 1
        return job.profile or (self._every > 0 and self._jobs % self._every == 0)

    def profile(
        self, job: Job, result: JobResult, meter: Meter, action: Callable[[Meter], None]
    ) -> list[StepProfile]:
        """Run `action` under the profiler and keep its kernel times; returns a profile per phase that ran."""
        about = {"mode": job.mode, "batch_size": len(job.prompts), "created": time()}
        steps = self._profiler.run(job.id, about, meter, action)
        by_phase = dict(zip(PHASES, _split(steps, result.prefill.steps), strict=True))
        for phase, recorded in by_phase.items():
            self._kernel_times.add(job.mode, phase, result.bucket, recorded)
        return [summary(phase, recorded) for phase, recorded in by_phase.items() if recorded]

    def estimates(self, job: Job, result: JobResult, floors: Mapping[Phase, Floor | None]) -> StepEstimates:
        """Costs per step of `job`: from its own profile, else from those of earlier requests."""
        per_step: dict[Phase, float | None] = {
            phase: self._kernel_times.per_step(job.mode, phase, result.bucket) for phase in PHASES
        }
        complete = result.profile is not None and covered(result)
        if result.profile is not None and complete:
            per_step |= {entry.phase: entry.kernel_seconds for entry in result.profile}
        return StepEstimates(self._cuda, floors, per_step, "profiled" if complete else "sampled")


def covered(result: JobResult) -> bool:
    """Whether all steps of a profiled job fit into its trace."""
    return result.prefill.steps + result.decode.steps <= STEPS_PER_TRACE


def totals(result: JobResult) -> tuple[int | None, int | None]:
    """Kernels and launch calls of the whole request; None where not all of it was profiled, or on a CPU."""
    profile = result.profile
    if profile is None or not covered(result):
        return None, None
    counts = [entry.steps for entry in profile]

    def total(values: list[float | None]) -> int | None:
        sums = [value * count for value, count in zip(values, counts, strict=True) if value is not None]
        return round(sum(sums)) if sums else None

    return total([entry.kernels for entry in profile]), total([entry.launches for entry in profile])


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
        launches=mean([step.launches for step in steps]),
        graph_launches=mean([step.graph_launches for step in steps]),
        kernel_seconds=mean([step.kernel_seconds for step in steps]),
        host_wait_seconds=mean([step.gaps.host_wait_seconds if step.gaps else None for step in steps]),
        kernel_wait_seconds=mean([step.gaps.kernel_wait_seconds if step.gaps else None for step in steps]),
    )


def _split(steps: list[ProfiledStep], prefill: int) -> tuple[list[ProfiledStep], list[ProfiledStep]]:
    return steps[:prefill], steps[prefill:]
