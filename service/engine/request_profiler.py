"""Chooses the requests that run under the profiler, and estimates the others' kernel times from them."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter_ns, time

import torch

from service.engine.job_result import JobResult
from service.engine.outcome import StepEstimates, covered
from service.records import PHASES, Job, KernelTime, Phase, SampleCounts, StepProfile
from service.statistics.intervals import median_interval
from service.step.meters import Meter
from service.step.profiling import Profiler
from service.step.trace import ProfiledStep


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


SAMPLES_KEPT = 16
"""Of each step, the newest."""

Key = tuple[str, Phase, int]


class KernelTimes:
    """Learnt at warm-up, and followed by what profiled requests add."""

    def __init__(self) -> None:
        self._samples: dict[Key, deque[float]] = defaultdict(lambda: deque(maxlen=SAMPLES_KEPT))

    def add(self, mode: str, phase: Phase, bucket: int, samples: Iterable[float | None]) -> None:
        """Add samples in seconds; None is a step whose kernels the profiler did not see, and is left out."""
        seen = [seconds for seconds in samples if seconds is not None]
        if seen:
            self._samples[mode, phase, bucket].extend(seen)

    def per_step(self, mode: str, phase: Phase, bucket: int) -> float | None:
        """The median of the newest samples; None where none has been taken."""
        samples = self._samples.get((mode, phase, bucket))
        return median(samples) if samples else None

    def of_mode(self, mode: str) -> list[KernelTime]:
        """All that is known of a mode, each with its interval."""
        found = []
        for (name, phase, bucket), samples in self._samples.items():
            if name == mode:
                interval = median_interval(list(samples))
                bounded = math.isfinite(interval.low)
                found.append(
                    KernelTime(
                        phase=phase,
                        batch=bucket,
                        seconds=interval.value,
                        low=interval.low if bounded else None,
                        high=interval.high if bounded else None,
                        samples=interval.samples,
                    )
                )
        return found


DEFAULT_EVERY = 200
"""On CUDA, where kernel time is known from profiled steps only: one request in so many, unless it is set.

The sixteen samples that are kept are then those of the last 3,200 requests, few enough to follow a change of
clocks or of the prompts, and a quantile of latency up to the 99th hardly meets a profiled one waiting in
front."""

MOST_SHARE = 0.01
"""At most this share of the engine's time goes into profiling by default: reading a trace takes as long as
some twenty requests, and whatever arrives meanwhile waits."""


class ProfileSchedule:
    """Counts requests: one in `every`, none where 0; None: the default of the device, within MOST_SHARE."""

    def __init__(self, every: int | None, cuda: bool, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._limited = every is None
        self._every = (DEFAULT_EVERY if cuda else 0) if every is None else every
        self._clock = clock
        self._requests = 0
        self._free_ns = 0

    def is_due(self) -> bool:
        """Whether the next request is. Call it once for each.

        One whose turn comes too early for MOST_SHARE is not made up for.
        """
        self._requests += 1
        if self._every == 0 or self._requests % self._every:
            return False
        return not self._limited or self._clock() >= self._free_ns

    def took(self, seconds: float) -> None:
        """A profiled request has just ended, and took so long."""
        self._free_ns = self._clock() + round(seconds / MOST_SHARE * 1e9)
