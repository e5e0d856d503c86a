"""The hollow twin: the same step with kernels that do next to nothing, so that its wall time is dispatch."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

import torch
from torch import Tensor, nn

from models.served import Served
from service.protocol.modes import Mode
from service.protocol.status import Floor
from service.statistics.intervals import median_interval
from service.step.callables import Buffers, Step
from service.step.cold_cache import ColdCache, issued_by_operator

WINDOW_SAMPLES = 64
"""Newest samples per (mode, bucket) that a floor is taken from, so that it follows the machine."""

FIRST_SAMPLES = 21
"""Samples per (mode, bucket) before a mode is ready."""

WIDE = 1.1
"""An interval whose ends lie further apart is not good enough to begin with."""

WARM_PASSES = 4
"""Untimed passes before a sample. In service a step follows others of its own mode; after different code the
first pass reads up to 1.6 times too long (instruction caches and branch history), and four settle it."""


@dataclass(slots=True)
class _Twin:
    mode: str
    bucket: int
    step: Step
    buffers: Buffers
    emptied_before: bool
    samples_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_SAMPLES))


class Calibration:
    """Dispatch floors per mode and batch, from twins at the smallest and the largest bucket.

    On a CPU a twin reads too low unless it is kept as cold as the served model's weights keep a real step:
    see `ColdCache`. On CUDA no weights pass through the host's caches, and there is nothing to cool.
    `twin` None: there is none, no twin step is ever added, and every floor stays None.
    """

    def __init__(self, model: nn.Module, twin: Served | None) -> None:
        self._device_type = next(model.parameters()).device.type
        self._cold_cache = ColdCache(model) if self._device_type == "cpu" else None
        self._in_one_call = twin
        self._by_operator = twin
        if self._cold_cache and twin:
            self._by_operator = copy.deepcopy(twin)
            self._cold_cache.into(self._by_operator)
        self._twins: dict[tuple[str, int], _Twin] = {}
        self._turn = 0

    def twin_of(self, mode: Mode) -> Served:
        """The hollow model that `mode`'s twin steps are to be built on."""
        twin = self._by_operator if issued_by_operator(mode, self._device_type) else self._in_one_call
        if twin is None:
            raise ValueError("this model has no hollow twin")
        return twin

    def add(self, mode: Mode, step: Step, buffers: Buffers) -> None:
        """Take a warmed twin step of `mode` at `buffers.bucket` into the round."""
        before = not issued_by_operator(mode, self._device_type)
        self._twins[mode.name, buffers.bucket] = _Twin(mode.name, buffers.bucket, step, buffers, before)

    def remove(self, mode: str) -> None:
        """Take a mode that failed out of the round."""
        self._twins = {key: twin for key, twin in self._twins.items() if twin.mode != mode}

    def first_samples(self, mode: str) -> None:
        """Sample each of `mode`'s twins until it has enough for an interval."""
        for twin in self._twins.values():
            if twin.mode == mode:
                self._sample(twin, FIRST_SAMPLES)

    def begin_anew(self) -> None:
        """Sample all twins anew, taking turns, so that a moment of disturbance meets each a little.

        Twins whose interval is still wide are sampled on, up to as often again.
        """
        for twin in self._twins.values():
            twin.samples_seconds.clear()
        for number in range(2 * FIRST_SAMPLES):
            for twin in self._twins.values():
                if number < FIRST_SAMPLES or _wide(twin):
                    self._sample(twin)

    def forget_samples(self, mode: str) -> None:
        """Begin the windows of `mode`'s twins anew, for whoever asks what the machine is like now."""
        for twin in self._twins.values():
            if twin.mode == mode:
                twin.samples_seconds.clear()

    def refresh(self, wanted: Callable[[], bool] = lambda: False) -> float:
        """Sample the next twin in the round; returns the seconds it took, 0 where there is none.

        `wanted` is asked between passes: where it says that the engine is needed, the sample is given up.
        """
        if not self._twins:
            return 0.0
        began = perf_counter_ns()
        self._sample(list(self._twins.values())[self._turn % len(self._twins)], wanted=wanted)
        self._turn += 1
        return (perf_counter_ns() - began) / 1e9

    @property
    def round_complete(self) -> bool:
        """Whether the newest refresh was the last one of a round over all twins."""
        return bool(self._twins) and self._turn % len(self._twins) == 0

    def floor(self, mode: str, bucket: int) -> Floor | None:
        """Dispatch of one decode step of `mode` at `bucket`; None before it is calibrated.

        Between the two calibrated buckets the floor is interpolated linearly in the batch.
        """
        twins = [twin for twin in self._twins.values() if twin.mode == mode and twin.samples_seconds]
        if not twins:
            return None
        low = _measured(min(twins, key=lambda twin: twin.bucket))
        high = _measured(max(twins, key=lambda twin: twin.bucket))
        for end in (low, high):
            if end.batch == bucket:
                return end
        share = (bucket - low.batch) / (high.batch - low.batch)

        def between(a: float, b: float) -> float:
            return a + share * (b - a)

        return Floor(
            batch=bucket,
            seconds=between(low.seconds, high.seconds),
            low=between(low.low, high.low),
            high=between(low.high, high.high),
            samples=min(low.samples, high.samples),
            source="interpolated",
        )

    def _sample(self, twin: _Twin, count: int = 1, wanted: Callable[[], bool] = lambda: False) -> None:
        samples = cold_seconds(twin.step, twin.buffers, self._cold_cache, twin.emptied_before, count, wanted)
        twin.samples_seconds.extend(samples)


def cold_seconds(
    step: Step,
    buffers: Buffers,
    cold_cache: ColdCache | None,
    emptied_before: bool,
    count: int = 1,
    wanted: Callable[[], bool] = lambda: False,
) -> list[float]:
    """Host seconds of `count` calls of a decode `step`, in the state in which serving finds it.

    That is: after others like it, and as cold as `cold_cache` makes it, before each call (`emptied_before`)
    or inside, which is taken off the clock. Fewer where `wanted` said between two that the machine is needed.
    """
    arguments, samples = buffers.arguments("decode"), []
    for _ in range(WARM_PASSES + count):
        if wanted():
            break
        if cold_cache is not None and emptied_before:
            cold_cache.before()
        if buffers.token.is_cuda:
            torch.cuda.synchronize()
        paused_ns = cold_cache.paused_ns if cold_cache is not None else 0
        began = perf_counter_ns()
        step(*arguments)
        ended = perf_counter_ns()
        if cold_cache is not None:
            paused_ns = cold_cache.paused_ns - paused_ns
        samples.append((ended - began - paused_ns) / 1e9)
    return samples[WARM_PASSES:]


def _wide(twin: _Twin) -> bool:
    floor = _measured(twin)
    return floor.high > WIDE * floor.low


def _measured(twin: _Twin) -> Floor:
    interval = median_interval(list(twin.samples_seconds))
    return Floor(
        batch=twin.bucket,
        seconds=interval.value,
        low=interval.low,
        high=interval.high,
        samples=interval.samples,
        source="calibrated",
    )


def dispatch_share(floor_seconds: float, steps: int, wall_seconds: float) -> float:
    """Dispatch seconds of `steps` steps on a CPU: `min(steps × floor, wall)`, a lower estimate."""
    return min(steps * floor_seconds, wall_seconds)


def prepare(buffers: Buffers, position: int = 0) -> Tensor:
    """Set `buffers` for a single decode step at `position`; returns its tokens."""
    buffers.positions.fill_(position)
    buffers.last.zero_()
    return buffers.token
