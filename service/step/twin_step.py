"""One hollow twin's step and the newest samples of its dispatch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from service.protocol.floors import Floor
from service.protocol.messages import Phase
from service.statistics.intervals import median_interval
from service.step.buffers import Arguments
from service.step.callables import Step

WINDOW_SAMPLES = 64
"""Newest samples per (mode, phase, bucket) that a floor is taken from, so that it follows the machine."""

WIDE = 1.1
"""Ratio of an interval's ends above which more samples are taken at once."""


@dataclass(slots=True)
class TwinStep:
    """A warmed step of one mode, phase and batch bucket.

    `evict_before`: the caches are emptied before each call, and not by its modules.
    """

    mode: str
    phase: Phase
    bucket: int
    step: Step
    arguments: Arguments
    evict_before: bool
    samples_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_SAMPLES))

    def floor(self, bucket: int) -> Floor:
        """The floor that the samples give, for a step at `bucket`. Raises ValueError where there is none."""
        interval = median_interval(list(self.samples_seconds))
        return Floor(
            phase=self.phase,
            batch=bucket,
            seconds=interval.value,
            low=interval.low,
            high=interval.high,
            samples=interval.samples,
            source="calibrated" if bucket == self.bucket else "smallest_batch",
        )

    def is_wide(self) -> bool:
        """Whether the floor's interval is wider than WIDE."""
        floor = self.floor(self.bucket)
        return floor.high > WIDE * floor.low
