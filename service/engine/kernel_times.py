"""Kernel seconds per step by mode, phase and batch bucket, from profiled steps on CUDA."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median

from service.protocol.device_times import KernelTime
from service.protocol.messages import Phase
from service.statistics.intervals import median_interval

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
