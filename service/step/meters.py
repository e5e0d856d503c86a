"""Meters measure around each call of a step, never inside: plain lists per step, read once per request."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter_ns
from typing import Literal, Protocol

import torch
from torch import Tensor

from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.native.step_samples import StepSamples

Instrumentation = Literal["off", "host", "full"]
"""Nothing; the host's clock only; on CUDA also events on the device's stream."""


@dataclass(slots=True)
class Readings:
    """Raw readings of one phase, in nanoseconds; one entry per step unless said otherwise.

    `begin` is the instant of `perf_counter_ns` at which the step's call begins, `call` the host clock around
    that call. `sampling` is around the sampling operators, one entry per sampled token. The others stay empty
    on a CPU: `feed` is the host clock around the operators that write the step's inputs, `wait` the host
    blocked on the device, `span` the device's own clock between two events around the call. The device
    reaches the first of them once earlier work is done, as a rule before the call has issued anything: so
    the span contains the time in which the device idles because the host is still issuing.
    `unmeasured` counts steps run without a clock, `minor_faults` the page faults of this thread over all
    steps. `samples` are those of this thread's native stacks within the steps; None where none were taken.
    """

    begin: list[int] = field(default_factory=list)
    call: list[int] = field(default_factory=list)
    feed: list[int] = field(default_factory=list)
    sampling: list[int] = field(default_factory=list)
    wait: list[int] = field(default_factory=list)
    span: list[int] = field(default_factory=list)
    unmeasured: int = 0
    minor_faults: int = 0
    samples: StepSamples | None = None

    @property
    def steps(self) -> int:
        """How many steps ran."""
        return len(self.call) + self.unmeasured

    def periods(self, until_ns: int) -> list[int]:
        """Nanoseconds from the beginning of each step's call to that of the next; the last's to `until_ns`.

        They add up to all the time from the first call on, whatever the engine does in it.
        """
        return [later - earlier for earlier, later in pairwise([*self.begin, until_ns])]


class Meter(Protocol):
    """Runs steps and copies tokens to the host, recording the time of each."""

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once and record it in `readings`."""

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """Copy `tokens`, int64 [batch], to the host: the one wait of a step."""


class NullMeter:
    """Instrumentation off: no clock is read, and steps are only counted."""

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once."""
        readings.unmeasured += 1
        return step(*arguments)

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """Wait and copy in one call."""
        values: list[int] = tokens.tolist()
        return values


class HostMeter:
    """For a CPU: operators run where they are called, so the call's clock holds host and kernel together."""

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once; its wall time goes to `readings.call`."""
        began = perf_counter_ns()
        result = step(*arguments)
        readings.call.append(perf_counter_ns() - began)
        readings.begin.append(began)
        return result

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """Nothing to wait for."""
        values: list[int] = tokens.tolist()
        return values


class CudaMeter:
    """For CUDA: host clock around the call, events on the compute stream, one wait per fetched token.

    No synchronise is added: tokens leave through a pinned buffer behind one event, and the timing events are
    read after that wait, when they have passed.
    """

    def __init__(self, largest_batch: int, events: bool = True) -> None:
        self._pinned = torch.zeros(largest_batch, dtype=torch.int64, pin_memory=True)
        self._copied = torch.cuda.Event()
        self._events = events
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._running: list[tuple[torch.cuda.Event, torch.cuda.Event, Readings]] = []

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """Call `step` once; `readings.call` is dispatch, which ends when the call returns."""
        pair = self._take() if self._events else None
        if pair:
            pair[0].record()
        began = perf_counter_ns()
        result = step(*arguments)
        readings.call.append(perf_counter_ns() - began)
        readings.begin.append(began)
        if pair:
            pair[1].record()
            self._running.append((*pair, readings))
        return result

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """Copy to pinned memory, wait once (`readings.wait`), then read the events that have passed."""
        target = self._pinned[: tokens.shape[0]]
        target.copy_(tokens, non_blocking=True)
        self._copied.record()
        began = perf_counter_ns()
        self._copied.synchronize()
        readings.wait.append(perf_counter_ns() - began)
        for start, end, owner in self._running:
            owner.span.append(int(start.elapsed_time(end) * 1e6))
            self._idle.append((start, end))
        self._running.clear()
        values: list[int] = target.tolist()
        return values

    def _take(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        if self._idle:
            return self._idle.pop()
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def new_meter(device: torch.device, largest_batch: int, instrumentation: Instrumentation = "full") -> Meter:
    """The meter that fits `device`; on a CPU `host` and `full` are the same."""
    if instrumentation == "off":
        return NullMeter()
    if device.type == "cuda":
        return CudaMeter(largest_batch, events=instrumentation == "full")
    return HostMeter()
