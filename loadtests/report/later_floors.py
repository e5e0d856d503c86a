"""What the floors that were taken after a sweep say of its steps: the machine may have changed meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.run.floors import stacks_dispatch
from loadtests.run.run_file import SweepRun
from service.statistics.estimates import Split


@dataclass(frozen=True, slots=True)
class LaterFloor:
    """Dispatch of one step by the witnesses after a sweep: seconds [low, high], its share [least, most].

    The shares are those of sampled stacks; None where none were sampled.
    """

    low: float
    high: float
    least: float | None = None
    most: float | None = None

    def widened(self, split: Split, steps: float) -> Split:
        """`split`, of `steps` steps, with an interval that allows what was found later too."""
        wall = split.dispatch + split.kernel
        lows, highs = [split.low, steps * self.low], [split.high, steps * self.high]
        if self.least is not None and self.most is not None:
            lows.append(wall * self.least)
            highs.append(wall * self.most)
        return Split(split.dispatch, split.kernel, min(lows), min(max(highs), wall))


def later_floor(run: SweepRun, mode: str, phase: str, bucket: int) -> LaterFloor | None:
    """The newest floor of a step; None where none with an interval was taken after the sweep."""
    place = (mode, phase, bucket)
    found = [f for f in run.floors_after if (f["mode"], f["phase"], f["batch"]) == place]
    return _read(found[-1]) if found else None


def _read(floor: Mapping[str, Any]) -> LaterFloor | None:
    if floor["low"] is None or floor["high"] is None:
        return None
    stacks = floor.get("stacks")
    if not stacks or stacks["low"] is None or stacks["high"] is None:
        return LaterFloor(floor["low"], floor["high"])
    _, low, high = stacks_dispatch(stacks)
    return LaterFloor(min(floor["low"], low), max(floor["high"], high), 1 - stacks["high"], 1 - stacks["low"])
