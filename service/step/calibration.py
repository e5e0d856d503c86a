"""The hollow twin: the same step with kernels that do next to nothing, so that its wall time is dispatch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

import torch
from torch import Tensor, nn

from service.border.messages import Floor
from service.statistics import median_interval
from service.step.callables import Buffers, Step

WINDOW_SAMPLES = 64
"""Newest samples per (mode, bucket) that a floor is taken from, so that it follows the machine."""

FIRST_SAMPLES = 21
"""Samples per (mode, bucket) before a mode is ready."""

WARM_PASSES = 4
"""Untimed passes before a sample. In service a step follows others of its own mode; after different code the
first pass reads up to 1.6 times too long (instruction caches and branch history), and four settle it."""

LARGEST_STREAM_BYTES = 256 * 2**20
"""Enough to empty any cache hierarchy; a larger model streams no more than this before each sample."""


@dataclass(slots=True)
class _Twin:
    mode: str
    bucket: int
    step: Step
    buffers: Buffers
    samples_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_SAMPLES))


class Calibration:
    """Dispatch floors per mode and batch, from twins at the smallest and the largest bucket.

    Before every sample a weights-sized buffer is streamed through the caches, because a hot twin reads too
    low: in a real step the weights push Python's and the dispatcher's own code and data out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._stream = stream_for(model)
        self._twins: dict[tuple[str, int], _Twin] = {}
        self._turn = 0

    def add(self, mode: str, step: Step, buffers: Buffers) -> None:
        """Take a warmed twin step of `mode` at `buffers.bucket` into the round."""
        self._twins[mode, buffers.bucket] = _Twin(mode, buffers.bucket, step, buffers)

    def remove(self, mode: str) -> None:
        """Take a mode that failed out of the round."""
        self._twins = {key: twin for key, twin in self._twins.items() if twin.mode != mode}

    def first_samples(self, mode: str) -> None:
        """Sample each of `mode`'s twins until it has enough for an interval."""
        for twin in self._twins.values():
            if twin.mode == mode:
                self._sample(twin, FIRST_SAMPLES)

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
            batch=bucket, seconds=between(low.seconds, high.seconds), low=between(low.low, high.low),
            high=between(low.high, high.high), samples=min(low.samples, high.samples), source="interpolated",
        )  # fmt: skip

    def _sample(self, twin: _Twin, count: int = 1, wanted: Callable[[], bool] = lambda: False) -> None:
        twin.samples_seconds.extend(cold_seconds(twin.step, twin.buffers, self._stream, count, wanted))


def cold_seconds(
    step: Step, buffers: Buffers, stream: Tensor, count: int = 1, wanted: Callable[[], bool] = lambda: False
) -> list[float]:
    """Host seconds of `count` calls of a decode `step`, in the state in which serving finds it.

    That is: after others like it, and after `stream` has gone through the caches as the weights do.
    Fewer where `wanted` said between two of them that the machine is needed.
    """
    arguments, samples = buffers.arguments("decode"), []
    for _ in range(WARM_PASSES + count):
        if wanted():
            break
        stream.sum()
        if buffers.token.is_cuda:
            torch.cuda.synchronize()
        began = perf_counter_ns()
        step(*arguments)
        samples.append((perf_counter_ns() - began) / 1e9)
    return samples[WARM_PASSES:]


def stream_for(model: nn.Module) -> Tensor:
    """A host buffer as large as the weights of `model`, to be read before a sample."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return torch.zeros(min(size, LARGEST_STREAM_BYTES) // 4)


def _measured(twin: _Twin) -> Floor:
    interval = median_interval(list(twin.samples_seconds))
    return Floor(
        batch=twin.bucket, seconds=interval.value, low=interval.low, high=interval.high,
        samples=interval.samples, source="calibrated",
    )  # fmt: skip


def dispatch_share(floor_seconds: float, steps: int, wall_seconds: float) -> float:
    """Dispatch seconds of `steps` steps on a CPU: `min(steps × floor, wall)`, a lower estimate."""
    return min(steps * floor_seconds, wall_seconds)


def prepare(buffers: Buffers, position: int = 0) -> Tensor:
    """Set `buffers` for a single decode step at `position`; returns its tokens."""
    buffers.positions.fill_(position)
    buffers.last.zero_()
    return buffers.token
