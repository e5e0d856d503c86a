"""Meters measure around each call of a step, never inside: plain lists per step, read once per request."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from time import perf_counter_ns
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.profiler import record_function

from service.records import Phase, SampleCounts
from service.step.buffers import SizedArguments, StepArguments
from service.step.callables import AnyStep
from service.step.trace import StepShape, mark_name

Result = TypeVar("Result")
"""What a step returns, as it is."""

COPIES = 2
"""Places that tokens are copied to in turn: those of one step while those before are on their way."""

Instrumentation = Literal["off", "full"]
"""Nothing; or the host's clock, and on CUDA events on the device's stream."""


@dataclass(slots=True)
class Readings:
    """Raw readings of one phase, in nanoseconds; one entry per step unless said otherwise.

    `begin` is the instant of `perf_counter_ns` at which the step's call begins, `call` the host clock around
    that call, `sampling` around the sampling operators, one entry per sampled token. On CUDA `feed` is around
    the operators that write the step's inputs, `wait` the host blocked on the device, and `span` the device's
    clock between two events around the call, idle time included, and `shapes` is what its kernels depend on.
    `unmeasured` counts steps run without a clock, `minor_faults` the page faults of this thread over all
    steps. `samples` are those of this thread within the steps; None where none were taken.
    """

    begin: list[int] = field(default_factory=list)
    call: list[int] = field(default_factory=list)
    feed: list[int] = field(default_factory=list)
    sampling: list[int] = field(default_factory=list)
    wait: list[int] = field(default_factory=list)
    span: list[int] = field(default_factory=list)
    shapes: list[StepShape] = field(default_factory=list)
    unmeasured: int = 0
    minor_faults: int = 0
    samples: SampleCounts | None = None

    @property
    def steps(self) -> int:
        return len(self.call) + self.unmeasured

    def periods(self, until_ns: int) -> list[int]:
        """Nanoseconds from the begin of each step's call to that of the next; the last's to `until_ns`."""
        return [later - earlier for earlier, later in pairwise([*self.begin, until_ns])]


class Copied(NamedTuple):
    """Tokens on their way to the host: `tokens`, int64 [batch], once `arrived` has passed.

    `running`: events around the steps before it, whose times can be read from then on.
    """

    tokens: Tensor
    arrived: torch.cuda.Event
    running: Sequence[tuple[torch.cuda.Event, torch.cuda.Event, Readings]]


class Meter:
    """Runs steps and copies tokens to the host; the other meters record the time of each. This one is for
    instrumentation `off`: it reads no clock, and only counts steps.
    """

    def run(self, step: Callable[..., Result], arguments: StepArguments, readings: Readings) -> Result:
        """Call `step` once and record it in `readings`."""
        readings.unmeasured += 1
        return step(*arguments)

    def copy(self, tokens: Tensor) -> Tensor | Copied:
        """Begin to copy `tokens`, int64 [batch], to the host, where a CPU has them already.

        Steps may follow before it is fetched.
        """
        return tokens

    def fetch(self, copied: Tensor | Copied, readings: Readings) -> list[int]:
        """The values of what was copied: the one wait of a step, which goes to `readings`."""
        assert isinstance(copied, Tensor)
        values: list[int] = copied.tolist()
        return values


SIZE_BITS = 16
"""A label is the step's number, below 2 ** SIZE_BITS, and above that its size."""


def number_of(arguments: StepArguments) -> int:
    """Of the size of a module's arguments; 0 of others."""
    return arguments.number if isinstance(arguments, SizedArguments) else 0


def step_shape(arguments: StepArguments) -> StepShape:
    """Of a module's step 0, and the number of its size."""
    if len(arguments) == 2:
        return StepShape(0, number_of(arguments))
    tokens, _, _, cache = arguments
    return StepShape(tokens.shape[1], cache[0][0].shape[1])


def step_size(arguments: StepArguments) -> int:
    """Tokens per row of a prefill, else positions that are attended to: a step's split depends on them."""
    shape = step_shape(arguments)
    return shape.row_tokens if shape.row_tokens > 1 else shape.attended_tokens


class StepLabels:
    """Which step runs now, for the sampler of this thread: `cell` holds its label, 0 between steps. Steps are
    numbered from 1, in the order in which they were added. `cell` None: nobody reads it.
    """

    def __init__(self, cell: ctypes.c_int64 | None = None) -> None:
        self._cell = ctypes.c_int64() if cell is None else cell
        self._calls: dict[AnyStep, _Calls] = {}
        self._newest: tuple[AnyStep, StepArguments, int, _Calls] | None = None

    def add(self, step: AnyStep) -> None:
        self._calls[step] = _Calls(len(self._calls) + 1)
        self._newest = None

    def call(self, step: Callable[..., Result], arguments: StepArguments) -> tuple[Result, int, int]:
        """Call `step` once: its result, the instant at which it began, and the nanoseconds that it took. A
        step that was not added has label 0; one that raises counts as no call.
        """
        newest = self._newest
        # Looked up anew in each step, it would cost microseconds: the step before has emptied the caches.
        if newest is None or newest[0] is not step or newest[1] is not arguments:
            calls = self._calls.get(step) or _Calls(0)
            label = calls.number and calls.number | step_size(arguments) << SIZE_BITS
            if number_of(arguments):
                calls = _Calls(0)  # the mean time of a module's step is of its first size
            newest = self._newest = step, arguments, label, calls
        _, _, label, calls = newest
        cell = self._cell
        began = perf_counter_ns()
        cell.value = label
        try:
            result = step(*arguments)
        finally:
            cell.value = 0
        took = perf_counter_ns() - began
        calls.count += 1
        calls.nanoseconds += took
        return result, began, took

    def take(self) -> dict[int, tuple[int, int]]:
        """Calls and nanoseconds by the step's number, of those that were called since the last `take`."""
        found = {one.number: (one.count, one.nanoseconds) for one in self._calls.values() if one.count}
        for one in self._calls.values():
            one.count = one.nanoseconds = 0
        return found


@dataclass(slots=True)
class _Calls:
    """What a step's calls come to."""

    number: int
    count: int = 0
    nanoseconds: int = 0


class HostMeter(Meter):
    """For a CPU: operators run where they are called, so the call's clock holds host and kernel together."""

    def __init__(self, labels: StepLabels | None = None) -> None:
        self._labels = labels or StepLabels()

    def run(self, step: Callable[..., Result], arguments: StepArguments, readings: Readings) -> Result:
        result, began, took = self._labels.call(step, arguments)
        readings.call.append(took)
        readings.begin.append(began)
        return result


class CudaMeter(Meter):
    """For CUDA: host clock around the call, which is dispatch and ends when it returns; events on the
    stream; one wait per fetched token. No synchronise is added: the timing events are read after that wait.
    `timed` False: instrumentation is off, and tokens are copied in the same way.
    """

    def __init__(self, largest_batch: int, timed: bool = True) -> None:
        self._timed = timed
        # An event that is not told its stream looks it up, which takes longer than the record itself.
        self._stream = torch.cuda.current_stream()
        self._targets = cycle(
            (torch.zeros(largest_batch, dtype=torch.int64, pin_memory=True), torch.cuda.Event())
            for _ in range(COPIES)
        )
        self._idle: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self._running: list[tuple[torch.cuda.Event, torch.cuda.Event, Readings]] = []
        self._newest: tuple[StepArguments | None, StepShape] = None, StepShape(0, 0)

    def run(self, step: Callable[..., Result], arguments: StepArguments, readings: Readings) -> Result:
        if not self._timed:
            return super().run(step, arguments, readings)
        start, end = self._take()
        start.record(self._stream)
        began = perf_counter_ns()
        result = step(*arguments)
        readings.call.append(perf_counter_ns() - began)
        readings.begin.append(began)
        end.record(self._stream)
        self._running.append((start, end, readings))
        if self._newest[0] is not arguments:
            self._newest = arguments, step_shape(arguments)
        readings.shapes.append(self._newest[1])
        return result

    def copy(self, tokens: Tensor) -> Copied:
        """Into pinned memory, behind all steps until now; one copy may still be on its way."""
        pinned, arrived = next(self._targets)
        target = pinned[: tokens.shape[0]]
        target.copy_(tokens, non_blocking=True)
        arrived.record(self._stream)
        running, self._running = self._running, []
        return Copied(target, arrived, running)

    def fetch(self, copied: Tensor | Copied, readings: Readings) -> list[int]:
        """Wait once (`readings.wait`), then read the events that have passed."""
        assert isinstance(copied, Copied)
        began = perf_counter_ns()
        copied.arrived.synchronize()
        if self._timed:
            readings.wait.append(perf_counter_ns() - began)
        for start, end, owner in copied.running:
            owner.span.append(int(start.elapsed_time(end) * 1e6))
            self._idle.append((start, end))
        values: list[int] = copied.tokens.tolist()
        return values

    def _take(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        if self._idle:
            return self._idle.pop()
        return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def new_meter(
    device: torch.device,
    largest_batch: int,
    instrumentation: Instrumentation = "full",
    labels: StepLabels | None = None,
) -> Meter:
    """The meter that fits `device`; on a CPU `labels` say what runs."""
    if device.type == "cuda":
        return CudaMeter(largest_batch, timed=instrumentation == "full")
    return HostMeter(labels) if instrumentation == "full" else Meter()


_PHASES: dict[int, Phase] = {0: "forward", 1: "decode"}


def step_name(arguments: StepArguments) -> str:
    """The name of a step's mark, with phase and shape."""
    shape = step_shape(arguments)
    return mark_name(_PHASES.get(shape.row_tokens, "prefill"), shape)


class ProfilingMeter(Meter):
    """Marks each step in the profiler's trace, and calls `stop`, which ends it, after `most` of them."""

    def __init__(self, inner: Meter, stop: Callable[[], None], most: int) -> None:
        self._inner = inner
        self._stop = stop
        self._left = most
        self._ended = False

    def run(self, step: Callable[..., Result], arguments: StepArguments, readings: Readings) -> Result:
        if not self._left:
            self.end()
        self._left -= 1
        with record_function(step_name(arguments)):
            return self._inner.run(step, arguments, readings)

    def copy(self, tokens: Tensor) -> Tensor | Copied:
        return self._inner.copy(tokens)

    def fetch(self, copied: Tensor | Copied, readings: Readings) -> list[int]:
        return self._inner.fetch(copied, readings)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self._stop()
