"""Chooses the requests that run under the profiler, and learns kernel times from them and at warm-up."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter_ns, time

import torch

from service.engine.generation import JobResult
from service.engine.outcome import StepEstimates, covered
from service.engine.step_shares import Key
from service.engine.warmup import Warmup
from service.records import (
    PHASES,
    DeviceTime,
    Job,
    KernelTime,
    Phase,
    ProfilerCost,
    SampleCounts,
    StepProfile,
)
from service.statistics.intervals import Interval, median_interval, unpaired_ratio
from service.step.buffers import LEAD_STEPS_OF_DISPATCH, Buffers, measured_arguments, set_positions
from service.step.callables import Step
from service.step.device import free_memory, is_device_lost, reason
from service.step.device_time import CudaQueue, device_time
from service.step.meters import Meter, step_shape
from service.step.profiling import FEW_STEPS, INTERVAL_STEPS, Profiler, profile_steps
from service.step.trace import ProfiledStep, StepShape, seconds_by_shape

DEFAULT_EVERY = 200
"""On CUDA: a quantile of latency up to the 99th hardly meets a profiled request waiting in front."""

MOST_SHARE = 0.01
"""At most this share of the engine's time goes into profiling by default: who arrives meanwhile waits."""


class RequestProfiler:
    """Profiles one request in `every`, none where 0, and any that requests it.

    `every` None: the default of the device, within MOST_SHARE. `used`: the profiler has run, which on CUDA
    may slow all that follows; no turn comes before that, so that every mode is measured without it first.
    """

    def __init__(self, device: torch.device, every: int | None, traces_folder: Path) -> None:
        self._cuda = device.type == "cuda"
        self._limited = every is None
        self._every = (DEFAULT_EVERY if self._cuda else 0) if every is None else every
        self._requests = 0
        self._free_ns = 0
        self._profiler = Profiler(device, traces_folder)
        self.kernel_times = KernelTimes()
        self.used = False

    def warm(self) -> None:
        """Run the profiler, unless it has run already: its first use takes seconds."""
        if not self.used:
            self.used = True
            self._profiler.warm()

    def is_due(self, job: Job) -> bool:
        """Whether to profile `job`; call it once for each. A turn too early for MOST_SHARE is left out."""
        self._requests += 1
        turn = self._every > 0 and self._requests % self._every == 0
        early = self._limited and perf_counter_ns() < self._free_ns
        return job.profile or (turn and not early and (self.used or not self._cuda))

    def profile(
        self, job: Job, result: JobResult, meter: Meter, action: Callable[[Meter], None]
    ) -> list[StepProfile]:
        """Run `action` under the profiler and keep its kernel times; returns a profile per phase that ran.

        It is empty where the trace could not be written.
        """
        rows = len(job.prompts)
        about = {"request_id": job.request_id, "mode": job.mode, "batch_size": rows, "created": time()}
        self.used = True
        began = perf_counter_ns()
        steps = self._profiler.run(job.id, about, meter, action)
        now_ns = perf_counter_ns()
        self._free_ns = now_ns + round((now_ns - began) / MOST_SHARE)
        if not steps:
            return []
        prefill = result.prefill.steps
        by_phase: dict[Phase, list[ProfiledStep]] = {"prefill": steps[:prefill], "decode": steps[prefill:]}
        for phase, recorded in by_phase.items():
            for shape, seen in seconds_by_shape(recorded).items():
                self.kernel_times.add((job.mode, phase, result.bucket), shape, [median(seen)])
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
        for entry in own:
            shapes = (result.prefill if entry.phase == "prefill" else result.decode).shapes
            # The mean over the phase's steps, whatever their shapes: all of them are in it.
            per_step[entry.phase] = dict.fromkeys(shapes, entry.kernel_seconds or 0.0)
        return StepEstimates(self._cuda, newest, per_step, "profiled")

    def usual_estimates(
        self, mode: str, bucket: int, newest: Mapping[Phase, SampleCounts | None]
    ) -> StepEstimates:
        """Costs per step of `mode` in `bucket`, from earlier profiled steps."""
        per_step = {phase: self.kernel_times.medians[mode, phase, bucket] for phase in PHASES}
        return StepEstimates(self._cuda, newest, per_step, "sampled")


def summary(phase: Phase, steps: Sequence[ProfiledStep]) -> StepProfile:
    """Means per step over `steps`, at least one; what this device cannot measure stays None."""

    def mean(values: Iterable[float | None]) -> float | None:
        measured = [value for value in values if value is not None]
        return sum(measured) / len(measured) if measured else None

    return StepProfile(
        phase=phase,
        steps=len(steps),
        operators=median(step.operators for step in steps),
        kernels=mean(step.kernels for step in steps),
        kernel_steps=sum(step.kernel_seconds is not None for step in steps),
        launches=mean(step.launches for step in steps),
        graph_launches=mean(step.graph_launches for step in steps),
        kernel_seconds=mean(step.kernel_seconds for step in steps),
    )


SAMPLES_KEPT = 16
"""Of each step and shape, the newest."""


class KernelTimes:
    """Kernel seconds of steps, learnt at warm-up and followed by what profiled requests add.

    `medians` has those of the newest samples, by mode, phase and bucket, then by the step's shape.
    """

    def __init__(self) -> None:
        self.medians: dict[Key, dict[StepShape, float]] = defaultdict(dict)
        self._samples: dict[tuple[Key, StepShape], deque[float]] = defaultdict(
            lambda: deque(maxlen=SAMPLES_KEPT)
        )

    def add(self, key: Key, shape: StepShape, seconds: Iterable[float]) -> None:
        """Add samples, at least one."""
        samples = self._samples[key, shape]
        samples.extend(seconds)
        self.medians[key][shape] = median(samples)

    def of_mode(self, mode: str) -> list[KernelTime]:
        """All that is known of a mode, each with its interval."""
        return [
            _kernel_time(phase, bucket, shape, median_interval(list(samples)))
            for ((name, phase, bucket), shape), samples in self._samples.items()
            if name == mode
        ]


def _kernel_time(phase: Phase, batch: int, shape: StepShape, seconds: Interval) -> KernelTime:
    low, high = (end if math.isfinite(end) else None for end in (seconds.low, seconds.high))
    return KernelTime(
        phase=phase,
        batch=batch,
        **shape._asdict(),
        seconds=seconds.value,
        low=low,
        high=high,
        samples=seconds.samples,
    )


ROUNDS = 8
CALLS = 9
"""Per mode and round; their median is one value."""

UNKNOWN = "what the profiler costs is unknown: a request was profiled before all modes had been measured"
REMEDY = (
    "TEARDOWN_CUPTI=1 in the service's environment lets go of it after each session (CUDA 12.6 or newer). "
    "Its effect on replayed graphs was not proved on this GPU: compare the parity of their texts with "
    "eager's (POST /v1/compare) before and after a profiled request"
)


@dataclass(slots=True)
class DeviceMeasurements:
    """On CUDA: what each mode's steps take on the device, and what the profiler costs them, taken at warm-up.

    On a CPU `queue` is None, and nothing is measured. A step's device time is measured twice, by the
    profiler's kernels and by queued calls between two events: they agree where the device is always busy.
    `missing`: why they could not be taken. `profiler_note`: where the profiler slows all later steps.
    """

    warmup: Warmup
    buffers: Mapping[int, Buffers]
    profiler: RequestProfiler
    queue: CudaQueue | None
    missing: str | None = None
    profiler_note: str | None = None

    def attach(self) -> Iterator[None]:
        """Attach the profiler, with every captured mode measured before and after; yields between samples.

        Its library stays attached after its first session, and may slow every launch (pytorch #146604).
        """
        try:
            if self.queue is not None:
                yield from self._attach()
        except Exception as error:
            if is_device_lost(error):
                raise
            self.profiler_note = f"what the profiler costs is not known: {reason(error)}"
            free_memory(error)

    def _attach(self) -> Iterator[None]:
        buffers = self.buffers[min(self.buffers)]
        steps = {
            name: one.steps["decode", buffers.bucket] for name, one in self.warmup.modes.items() if one.steps
        }
        before = yield from self._rounds(steps, buffers)
        if self.profiler.used:
            self.profiler_note = UNKNOWN
            return
        self.profiler.warm()
        after = yield from self._rounds(steps, buffers)
        costs = {name: _cost(before[name], after[name]) for name in steps}
        slowed = [
            f"{name} {cost.ratio:.2f} (95 % interval {cost.low:.2f} to {cost.high:.2f})"
            for name, cost in costs.items()
            if cost.matters
        ]
        if slowed:
            self.profiler_note = (
                "since the profiler's first session a decode step takes this many times as long to issue: "
                f"{', '.join(slowed)}. {REMEDY}"
            )
        for name, cost in costs.items():
            self.warmup.update(self.warmup.modes[name], profiler_cost=cost)

    def _rounds(
        self, steps: Mapping[str, Step], buffers: Buffers
    ) -> Generator[None, None, dict[str, list[float]]]:
        """Dispatch of each mode's decode step with `buffers`, in a random order per round."""
        found: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(ROUNDS):
            names = list(steps)
            Random(number).shuffle(names)
            for name in names:
                found[name].append(decode_dispatch(steps[name], buffers))
                yield
        return found

    def learn(self) -> Iterator[None]:
        """Take the device's times of all steps of the ready modes; yields after each, with all its shapes."""
        queue = self.queue
        if queue is None:
            return
        try:
            for name, configured in self.warmup.ready().items():
                device_times: list[DeviceTime] = []
                for (phase, bucket), step in configured.steps.items():
                    device_times.append(self._learn_step(queue, name, step, phase, bucket))
                    yield
                kernel_times = self.profiler.kernel_times.of_mode(name)
                self.warmup.update(configured, device_times=device_times, kernel_times=kernel_times)
        except Exception as error:
            if is_device_lost(error):
                raise
            # A profiler that fails costs its numbers, not the engine.
            self.missing = reason(error)
            free_memory(error)

    def _learn_step(self, queue: CudaQueue, mode: str, step: Step, phase: Phase, bucket: int) -> DeviceTime:
        """Kernel seconds of every shape, in one session; the device's time of the usual shape, whose kernels
        have an interval.
        """
        buffers = self.buffers[bucket]
        set_positions(buffers, phase)
        arguments = measured_arguments(buffers, phase)
        usual = step_shape(arguments)
        others = [one for one in buffers.shapes(phase) if step_shape(one) != usual]
        plan = [(arguments, INTERVAL_STEPS), *((one, FEW_STEPS) for one in others)]
        for shape, seen in seconds_by_shape(profile_steps(step, plan)).items():
            self.profiler.kernel_times.add((mode, phase, bucket), shape, seen)
        return device_time(queue, partial(step, *arguments), phase, bucket, usual)


def decode_dispatch(step: Step, buffers: Buffers) -> float:
    """Host seconds of one warmed decode step, issued to an idle device: the median of CALLS."""
    set_positions(buffers, "decode")
    arguments = measured_arguments(buffers, "decode")
    found: list[float] = []
    for _ in range(LEAD_STEPS_OF_DISPATCH + CALLS):
        if arguments[0].is_cuda:
            torch.cuda.synchronize()
        began = perf_counter_ns()
        step(*arguments)
        found.append((perf_counter_ns() - began) / 1e9)
    return median(found[LEAD_STEPS_OF_DISPATCH:])


def _cost(before: list[float], after: list[float]) -> ProfilerCost:
    ratio = unpaired_ratio(after, before)
    return ProfilerCost(
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        rounds=ratio.samples,
        before_seconds=median(before),
        after_seconds=median(after),
    )
