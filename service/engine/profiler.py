"""Chooses the requests that run under the profiler, and learns kernel times from them and at warm-up."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from time import perf_counter_ns, time

import torch
from torch.utils._pytree import tree_leaves

from service.engine.job import ALL_PHASES, JobResult
from service.engine.kernel_process import KernelProcess
from service.engine.outcome import StepEstimates, covered
from service.engine.step_shares import Key
from service.engine.warmup import Warmup
from service.records import (
    DeviceTime,
    Job,
    KernelTime,
    Phase,
    ProfilerCost,
    SampleCounts,
    StepProfile,
)
from service.statistics.intervals import median_interval, named_fields, unpaired_ratio
from service.step.buffers import LEAD_STEPS_OF_DISPATCH, StepInputs
from service.step.callables import AnyStep
from service.step.device import free_memory, is_device_lost, reason
from service.step.device_time import CudaQueue, queued_time
from service.step.meters import Meter, step_shape
from service.step.profiling import INTERVAL_STEPS, Profiler
from service.step.trace import ProfiledStep, StepShape, seconds_by_shape
from service.workloads import GENERATE, Workload


class RequestProfiler:
    """Profiles one request in `every`, none where 0, and any that requests it.

    `used`: the profiler has run, which on CUDA slows all later launches. `before_first` is called first.
    """

    def __init__(self, device: torch.device, every: int, traces_folder: Path) -> None:
        self._every = every
        self._requests = 0
        self._cuda = device.type == "cuda"
        self._profiler = Profiler(device, traces_folder)
        self.kernel_times = KernelTimes()
        self.used = False
        self.before_first: Callable[[], None] = lambda: None

    def warm(self) -> None:
        """Run the profiler, unless it has run already: its first use takes seconds."""
        if not self.used:
            self.used = True
            self._profiler.warm()

    def is_due(self, job: Job) -> bool:
        """Whether to profile `job`; call it once for each."""
        self._requests += 1
        return job.profile or (self._every > 0 and self._requests % self._every == 0)

    @property
    def _attached(self) -> bool:
        return self._cuda and self.used

    def profile(
        self, job: Job, result: JobResult, meter: Meter, action: Callable[[Meter], None]
    ) -> list[StepProfile]:
        """Run `action` under the profiler and keep its kernel times; returns a profile per phase that ran.

        It is empty where the trace could not be written.
        """
        rows = job.batch_size
        about = {"request_id": job.request_id, "mode": job.mode, "batch_size": rows, "created": time()}
        if not self.used:
            self.before_first()
        self.used = True
        steps = self._profiler.run(job.id, about, meter, action)
        if not steps:
            return []
        by_phase: dict[Phase, list[ProfiledStep]] = {}
        for phase in result.workload.phases:
            count = result.of(phase).steps
            by_phase[phase], steps = steps[:count], steps[count:]
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
            shapes = result.of(entry.phase).shapes
            # The mean over the phase's steps, whatever their shapes: all of them are in it.
            per_step[entry.phase] = dict.fromkeys(shapes, entry.kernel_seconds or 0.0)
        return StepEstimates(self._cuda, newest, per_step, "profiled", self._attached)

    def usual_estimates(
        self, mode: str, bucket: int, newest: Mapping[Phase, SampleCounts | None]
    ) -> StepEstimates:
        """Costs per step of `mode` in `bucket`, from earlier profiled steps."""
        if not self._cuda:
            return StepEstimates(False, newest, {}, "sampled")
        per_step = {phase: self.kernel_times.medians[mode, phase, bucket] for phase in ALL_PHASES}
        return StepEstimates(True, newest, per_step, "sampled", self._attached)


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
        samples = self._samples[key, shape]
        samples.extend(seconds)
        self.medians[key][shape] = median(samples)

    def of_mode(self, mode: str) -> list[KernelTime]:
        """All that is known of a mode, each with its interval."""
        return [
            KernelTime(
                phase=phase,
                batch=bucket,
                **shape._asdict(),
                **named_fields(median_interval(list(samples)), "seconds"),
            )
            for ((name, phase, bucket), shape), samples in self._samples.items()
            if name == mode
        ]


ROUNDS = 8
CALLS = 9
"""Per mode and round; their median is one value."""


@dataclass(slots=True)
class DeviceMeasurements:
    """On CUDA: what each mode's steps take on the device, and what the profiler costs those that it slows.

    On a CPU `queue` is None, and nothing is measured. A step's device time is measured twice, by the
    profiler's kernels, in a process of its own, and by queued calls between two events: they agree where the
    device is always busy. `missing`: why they could not be taken. `profiler_note`: that the profiler, which a
    request wanted, is attached to this process, and what that costs. `followed`: modes that the process that
    profiles was to capture.
    """

    warmup: Warmup
    inputs: Mapping[int, StepInputs]
    profiler: RequestProfiler
    queue: CudaQueue | None
    start_process: Callable[[], KernelProcess]
    workload: Workload = GENERATE
    missing: str | None = None
    profiler_note: str | None = None
    process: KernelProcess | None = None
    followed: list[str] = field(default_factory=list)

    def attach(self) -> None:
        """Attach the profiler, and measure dispatch of every ready mode before and after.

        Its library stays attached after its first session, and slows every launch (pytorch #146604).
        """
        if self.queue is None:
            return
        try:
            costs = self._costs().items()
            slower = [f"{name} {one.ratio:.2f} ({one.low:.2f} to {one.high:.2f})" for name, one in costs]
            found = (
                f"to issue a {self.workload.step} takes this many times as long (95 %): {', '.join(slower)}"
            )
            for name, cost in costs:
                self.warmup.update(self.warmup.modes[name], profiler_cost=cost)
        except Exception as error:
            if is_device_lost(error):
                raise
            found = f"what that costs is not known: {reason(error)}"
            free_memory(error)
        self.profiler_note = (
            f"a request was profiled, and the profiler stays attached to the engine: {found}. Later requests "
            "say so (sources.dispatch: attached); a restart of the engine ends it"
        )

    def _costs(self) -> dict[str, ProfilerCost]:
        bucket = min(self.inputs)
        steps = {name: one.steps[self.workload.main, bucket] for name, one in self.warmup.ready().items()}
        before = self._rounds(steps, self.inputs[bucket])
        self.profiler.warm()
        after = self._rounds(steps, self.inputs[bucket])
        return {name: _cost(before[name], after[name]) for name in steps}

    def _rounds(self, steps: Mapping[str, AnyStep], inputs: StepInputs) -> dict[str, list[float]]:
        """Dispatch of each mode's main step on `inputs`, in a random order per round."""
        found: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(ROUNDS):
            names = list(steps)
            Random(number).shuffle(names)
            for name in names:
                found[name].append(step_dispatch(steps[name], inputs, self.workload.main))
        return found

    def follow(self) -> None:
        """Have modes that have become ready captured in the process that profiles, while others warm up."""
        if self.queue is None or self.missing is not None:
            return
        try:
            for name in self.warmup.ready():
                if name not in self.followed:
                    self.process = self.process or self.start_process()
                    self.process.capture(name)
                    self.followed.append(name)
        except (RuntimeError, OSError) as error:
            self.missing = f"kernel times are not known: {error}"

    def learn(self) -> Iterator[None]:
        """Take the device's times of all steps of the ready modes; yields between two steps."""
        if self.queue is None:
            return
        try:
            self.follow()
            yield from self._learn(self.queue)
        except Exception as error:
            if is_device_lost(error):
                raise
            # What fails to be measured costs its numbers, not the engine.
            self.missing = f"device times are not all known: {reason(error)}"
            free_memory(error)
        finally:
            if self.process is not None:
                self.process.close()

    def _learn(self, queue: CudaQueue) -> Iterator[None]:
        failed = yield from self._await_captures()
        for configured in self.warmup.ready().values():
            device_times: list[DeviceTime] = []
            for (phase, bucket), step in configured.steps.items():
                device_times.append(self._queued(queue, step, phase, bucket))
                yield
            self.warmup.update(configured, device_times=device_times)
        if self.process is not None:
            captured = [name for name in self.followed if name not in failed]
            failed |= yield from self._learn_kernels(self.process, captured)
        if failed:
            self.missing = f"kernel times are not known: {'; '.join(dict.fromkeys(failed.values()))}"

    def _await_captures(self) -> Generator[None, None, dict[str, str]]:
        """By mode, why it could not be captured there."""
        failed: dict[str, str] = {}
        for name in self.followed:
            try:
                if self.process is not None:
                    yield from self.process.captured(name)
            except RuntimeError as error:
                failed[name] = str(error)
        return failed

    def _queued(self, queue: CudaQueue, step: AnyStep, phase: Phase, bucket: int) -> DeviceTime:
        arguments = self.inputs[bucket].measured(phase)
        seconds, queued, upper_bound = queued_time(queue, partial(step, *arguments))
        return DeviceTime(
            phase=phase,
            batch=bucket,
            **step_shape(arguments)._asdict(),
            **named_fields(seconds, "seconds"),
            queued=queued,
            upper_bound=upper_bound,
        )

    def _learn_kernels(
        self, process: KernelProcess, names: Iterable[str]
    ) -> Generator[None, None, dict[str, str]]:
        """Kernel times of the modes that are captured there; by mode, why they are not known."""
        failed: dict[str, str] = {}
        for name in names:
            try:
                found = process.profiled(name)
            except RuntimeError as error:
                failed[name] = str(error)
                continue
            for one in found:
                for shape, seen in seconds_by_shape(one.steps).items():
                    self.profiler.kernel_times.add((name, one.phase, one.batch), shape, seen)
            profiles = [summary(one.phase, one.steps[:INTERVAL_STEPS]) for one in found]
            kernel_times = self.profiler.kernel_times.of_mode(name)
            self.warmup.update(self.warmup.modes[name], kernel_times=kernel_times, profiles=profiles)
            yield
        return failed


def step_dispatch(step: AnyStep, inputs: StepInputs, phase: Phase) -> float:
    """Host seconds of one warmed step, issued to an idle device: the median of CALLS."""
    arguments = inputs.measured(phase)
    on_cuda = any(leaf.is_cuda for leaf in tree_leaves(tuple(arguments)) if isinstance(leaf, torch.Tensor))
    found: list[float] = []
    for _ in range(LEAD_STEPS_OF_DISPATCH + CALLS):
        if on_cuda:
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
