"""One hollow twin's decode step and the newest samples of its dispatch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from service.protocol.status import Floor
from service.step.buffers import Buffers
from service.step.callables import Step
from service.step.floors import calibrated_floor

WINDOW_SAMPLES = 64
"""Newest samples per (mode, bucket) that a floor is taken from, so that it follows the machine."""

WIDE = 1.1
"""Ratio of an interval's ends above which more samples are taken at once."""


@dataclass(slots=True)
class TwinStep:
    """A warmed step of one mode and bucket.

    `evict_before`: the caches are emptied before each call, and not by its modules.
    """

    mode: str
    bucket: int
    step: Step
    buffers: Buffers
    evict_before: bool
    samples_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW_SAMPLES))

    def floor(self) -> Floor:
        """The floor that the samples give. Raises ValueError where there is none."""
        return calibrated_floor(self.bucket, self.samples_seconds)

    def is_wide(self) -> bool:
        """Whether the floor's interval is too wide to begin with."""
        floor = self.floor()
        return floor.high > WIDE * floor.low
