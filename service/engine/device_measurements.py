"""On CUDA: what each mode's steps take on the device, learnt once at warm-up, and what the profiler costs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from statistics import median
from time import perf_counter_ns

import torch

from service.engine.configured_mode import ConfiguredMode
from service.engine.request_profiler import RequestProfiler
from service.engine.warmup import Warmup
from service.records import DeviceTime, Phase, ProfilerCost
from service.statistics.intervals import unpaired_ratio
from service.step.buffers import Arguments, Buffers
from service.step.callables import Step
from service.step.device_errors import free_memory, is_device_lost
from service.step.device_time import CudaQueue, DeviceQueue, device_time
from service.step.measured_inputs import measured_arguments, set_positions
from service.step.profiling import INTERVAL_STEPS, profile_steps
from service.step.trace import ProfiledStep
from service.step.untimed import LEAD_STEPS_OF_DISPATCH

ProfileSteps = Callable[[Step, Arguments, int], Sequence[ProfiledStep]]


class DeviceMeasurements:
    """Two measurements of a step's device time: the profiler's kernels, and queued calls between two events.

    Both run steps as requests do, and agree where the device is busy all through a step. `missing` is the
    reason where they could not be taken; without them modes serve all the same.
    """

    def __init__(
        self,
        warmup: Warmup,
        buffers: Mapping[int, Buffers],
        profiler: RequestProfiler,
        queue: DeviceQueue,
        profile: ProfileSteps = profile_steps,
    ) -> None:
        self._warmup = warmup
        self._buffers = buffers
        self._profiler = profiler
        self._queue = queue
        self._profile = profile
        self._attachment = ProfilerAttachment(buffers, decode_dispatch)
        self.missing: str | None = None

    @property
    def profiler_note(self) -> str | None:
        """Where the profiler slows all later steps, or why that is not known."""
        return self._attachment.note

    def attach(self) -> Iterator[None]:
        """Attach the profiler, with every captured mode measured before and after; yields between samples."""
        modes = self._warmup.modes
        try:
            yield from self._attachment.attach(modes, self._profiler.warm, lambda: self._profiler.used)
        except Exception as error:
            if is_device_lost(error):
                raise
            self._attachment.note = f"what the profiler costs is not known: {type(error).__name__}: {error}"[
                :2000
            ]
            free_memory(error)
        for name, cost in self._attachment.costs.items():
            self._warmup.update(modes[name], profiler_cost=cost)

    def learn(self) -> Iterator[None]:
        """Take the device's times of all steps of the ready modes; yields between two steps."""
        try:
            for configured in self._warmup.ready().values():
                yield from self._learn_mode(configured)
        except Exception as error:
            if is_device_lost(error):
                raise
            # A profiler that fails costs its numbers, not the engine.
            self.missing = f"{type(error).__name__}: {error}"[:2000]
            free_memory(error)

    def _learn_mode(self, configured: ConfiguredMode) -> Iterator[None]:
        name = configured.mode.name
        device_times: list[DeviceTime] = []
        for (phase, bucket), step in configured.steps.items():
            device_times.append(self._learn_step(name, step, phase, bucket))
            yield
        kernel_times = self._profiler.kernel_times.of_mode(name)
        self._warmup.update(configured, device_times=device_times, kernel_times=kernel_times)

    def _learn_step(self, mode: str, step: Step, phase: Phase, bucket: int) -> DeviceTime:
        buffers = self._buffers[bucket]
        set_positions(buffers, phase)
        arguments = measured_arguments(buffers, phase)
        profiled = self._profile(step, arguments, INTERVAL_STEPS)
        self._profiler.kernel_times.add(mode, phase, bucket, [one.kernel_seconds for one in profiled])
        return device_time(self._queue, partial(step, *arguments), phase, bucket)


class NoDeviceMeasurements:
    """On a CPU: operators run where they are called, so there is no device beside the host to be observed."""

    missing: str | None = None
    profiler_note: str | None = None

    def attach(self) -> Iterator[None]:
        """Nothing."""
        return iter(())

    def learn(self) -> Iterator[None]:
        """Nothing."""
        return iter(())


def new_device_measurements(
    device: torch.device, warmup: Warmup, buffers: Mapping[int, Buffers], profiler: RequestProfiler
) -> DeviceMeasurements | NoDeviceMeasurements:
    """What can be measured on `device`."""
    if device.type == "cuda":
        return DeviceMeasurements(warmup, buffers, profiler, CudaQueue())
    return NoDeviceMeasurements()


ROUNDS = 8
CALLS = 9
"""Per mode and round; their median is one value."""

UNKNOWN = "what the profiler costs is unknown: a request was profiled before all modes had been measured"
REMEDY = "TEARDOWN_CUPTI=1 in the service's environment lets go of it after each session (CUDA 12.6 or newer)"

Rounds = dict[str, list[float]]


class ProfilerAttachment:
    """Attaches the profiler once every mode has been measured without it.

    On CUDA the profiler's library stays attached to the process after its first session, and every launch
    call may pass through it from then on (pytorch #146604). `costs` has the ratio by mode.
    """

    def __init__(self, buffers: Mapping[int, Buffers], measure: Callable[[Step, Buffers], float]) -> None:
        self._buffers = buffers[min(buffers)]
        self._measure = measure
        self.costs: dict[str, ProfilerCost] = {}
        self.note: str | None = None

    def attach(
        self, modes: Mapping[str, ConfiguredMode], warm: Callable[[], None], attached: Callable[[], bool]
    ) -> Iterator[None]:
        """Measure, `warm` the profiler, measure again; yields where other work does no harm.

        `attached` says whether something else has used the profiler already.
        """
        steps = {
            name: configured.steps["decode", self._buffers.bucket]
            for name, configured in modes.items()
            if configured.steps
        }
        before = yield from self._rounds(steps)
        if attached():
            self.note = UNKNOWN
            warm()
            return
        warm()
        after = yield from self._rounds(steps)
        self.costs = {name: _cost(before[name], after[name]) for name in steps}
        self.note = _note(self.costs)

    def _rounds(self, steps: Mapping[str, Step]) -> Generator[None, None, Rounds]:
        found: Rounds = {name: [] for name in steps}
        for number in range(ROUNDS):
            names = list(steps)
            Random(number).shuffle(names)
            for name in names:
                found[name].append(self._measure(steps[name], self._buffers))
                yield
        return found


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


def _note(costs: Mapping[str, ProfilerCost]) -> str | None:
    slowed = [
        f"{name} {cost.ratio:.2f} (95 % interval {cost.low:.2f} to {cost.high:.2f})"
        for name, cost in costs.items()
        if cost.matters
    ]
    if not slowed:
        return None
    return (
        "since the profiler's first session a decode step takes this many times as long to issue: "
        f"{', '.join(slowed)}. {REMEDY}"
    )
