"""Which requests run under the profiler, and what they teach about all others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import time

import torch

from service.engine.generation import Run
from service.engine.timings import StepCosts
from service.protocol.messages import Job, Phase, StepProfile
from service.protocol.modes import Mode
from service.protocol.status import Floor, ModeStatus
from service.step.meters import Meter
from service.step.profiling import STEPS_PER_TRACE, KernelTimes, Profiler
from service.step.trace import ProfiledStep

PHASES: tuple[Phase, ...] = ("prefill", "decode")


class RequestProfiler:
    """Profiles one request in `every` (none where 0), and any that asks for it."""

    def __init__(self, device: torch.device, every: int, traces_folder: Path) -> None:
        self._cuda, self._every = device.type == "cuda", every
        self._profiler = Profiler(device, traces_folder)
        self._kernel_times = KernelTimes()
        self._jobs = 0

    def warm(self) -> None:
        """Have the profiler's slow first use behind us."""
        self._profiler.warm()

    def wants(self, job: Job) -> bool:
        """Whether `job` is to be profiled; asked once per job."""
        self._jobs += 1
        return job.profile or (self._every > 0 and self._jobs % self._every == 0)

    def profiled(
        self, job: Job, run: Run, meter: Meter, action: Callable[[Meter], None]
    ) -> list[StepProfile]:
        """Run `action` under the profiler and learn from it; returns the profile of each phase that ran."""
        about = {"mode": job.mode, "batch_size": len(job.prompts), "created": time()}
        steps = self._profiler.run(job.id, about, meter, action)
        by_phase = dict(zip(PHASES, _split(steps, run.prefill.steps), strict=True))
        for phase, recorded in by_phase.items():
            self._kernel_times.learn(job.mode, phase, run.bucket, recorded)
        return [summary(phase, recorded) for phase, recorded in by_phase.items() if recorded]

    def costs(
        self, job: Job, run: Run, floor: Floor | None, profile: Sequence[StepProfile] | None
    ) -> StepCosts:
        """What is known of `job` besides its clocks: its own profile, else what was learnt."""
        per_step: dict[Phase, float | None] = {
            phase: self._kernel_times.per_step(job.mode, phase, run.bucket) for phase in PHASES
        }
        complete = profile is not None and covered(run)
        if profile is not None and complete:
            per_step |= {entry.phase: entry.kernel_seconds for entry in profile}
        return StepCosts(self._cuda, floor, per_step, "profiled" if complete else "sampled")


def covered(run: Run) -> bool:
    """Whether the profiler saw every step of `run`."""
    return run.prefill.steps + run.decode.steps <= STEPS_PER_TRACE


def ran_as(mode: Mode, status: ModeStatus, profile: Sequence[StepProfile] | None) -> tuple[str, str | None]:
    """What a request really ran as, and why: a sample of graph replay must show one launch per step."""
    if status.effective != mode.cuda.name or not mode.cuda.graph_replay:
        return status.effective, status.reason
    decode = [entry.graph_launches for entry in profile or () if entry.phase == "decode"]
    if any(launches is not None and launches != 1 for launches in decode):
        return "compiled", "graph_skipped"
    return status.effective, status.reason


def totals(run: Run, profile: Sequence[StepProfile] | None) -> tuple[int | None, int | None]:
    """Kernels and launch calls of the whole request; None where not all of it was profiled, or on a CPU."""
    if profile is None or not covered(run):
        return None, None
    kernels, launches = [p.kernels for p in profile], [p.launches for p in profile]
    counts = [entry.steps for entry in profile]

    def total(values: list[float | None]) -> int | None:
        known = [value * count for value, count in zip(values, counts, strict=True) if value is not None]
        return round(sum(known)) if known else None

    return total(kernels), total(launches)


def summary(phase: Phase, steps: Sequence[ProfiledStep]) -> StepProfile:
    """Means per step over `steps`, at least one; what the device does not have stays None."""

    def mean(values: Sequence[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

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
