"""On CUDA: what each mode's steps take on the device, learnt once at warm-up, and what the profiler costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch

from service.engine.configured_mode import ConfiguredMode
from service.engine.profiler_cost import ProfilerAttachment, decode_dispatch
from service.engine.request_profiler import RequestProfiler
from service.engine.warmup import Warmup
from service.protocol.device_times import DeviceTime
from service.protocol.messages import Phase
from service.step.buffers import Arguments, Buffers
from service.step.callables import Step
from service.step.device_errors import free_memory, is_device_lost
from service.step.device_time import CudaQueue, DeviceQueue, device_time
from service.step.measured_inputs import measured_arguments, set_positions
from service.step.profiling import INTERVAL_STEPS, profile_steps
from service.step.trace import ProfiledStep

ProfileSteps = Callable[[Step, Arguments, int], Sequence[ProfiledStep]]


class DeviceWitnesses:
    """Two witnesses of a step's device time: the profiler's kernels, and queued calls between two events.

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


class NoDeviceWitnesses:
    """On a CPU: operators run where they are called, so there is no device beside the host to be observed."""

    missing: str | None = None
    profiler_note: str | None = None

    def attach(self) -> Iterator[None]:
        """Nothing."""
        return iter(())

    def learn(self) -> Iterator[None]:
        """Nothing."""
        return iter(())


def new_device_witnesses(
    device: torch.device, warmup: Warmup, buffers: Mapping[int, Buffers], profiler: RequestProfiler
) -> DeviceWitnesses | NoDeviceWitnesses:
    """The witnesses that there are on `device`."""
    if device.type == "cuda":
        return DeviceWitnesses(warmup, buffers, profiler, CudaQueue())
    return NoDeviceWitnesses()
