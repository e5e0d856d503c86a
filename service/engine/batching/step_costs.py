"""What decode steps and prefills take, by mode and bucket, from those that ran."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_low

from service.protocol.messages import Phase

NEWEST_STEPS = 64
"""A step's cost is the median of so many."""

LOOK_AGAIN_STEPS = 8
"""After so many more steps the median is taken anew: it is asked for between two steps."""


@dataclass(slots=True)
class StepCost:
    """What the newest steps of one mode took in one bucket, or its prefills, each as a whole.

    `nanoseconds` is their median, None where none has run.
    """

    nanoseconds: int | None = None
    _newest: deque[int] = field(default_factory=lambda: deque(maxlen=NEWEST_STEPS))
    _left: int = 1

    def add(self, nanoseconds: int) -> None:
        """A step has run."""
        self._newest.append(nanoseconds)
        self._left -= 1
        if not self._left:
            self.nanoseconds, self._left = median_low(self._newest), LOOK_AGAIN_STEPS


class StepCosts:
    """Those of all modes and buckets."""

    def __init__(self) -> None:
        self._costs: dict[tuple[str, Phase, int], StepCost] = {}

    def of(self, mode: str, phase: Phase, bucket: int) -> StepCost:
        """To add to, and to read."""
        return self._costs.setdefault((mode, phase, bucket), StepCost())
