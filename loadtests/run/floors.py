"""The dispatch floors of the service, settled before and after a sweep, and which of them moved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.run.target import Target, TargetError

FLOORS_TIMEOUT_SECONDS = 300.0
"""Taking all floors anew with an interval is seconds for a small model and minutes for a large one."""


class NoFloors(TargetError):
    """The service gave no floors; the message is the reason."""


def read_floors(target: Target) -> list[dict[str, Any]]:
    """The floors of POST /v1/floors, measured now and settled, with all samples.

    Raises NoFloors where the service has no such call or refuses it, and Unreachable.
    """
    status, body = target.post("/v1/floors", {}, FLOORS_TIMEOUT_SECONDS)
    if status in (404, 405):
        raise NoFloors("an older service: it has no POST /v1/floors")
    try:
        floors = json.loads(body)["floors"] if status == 200 else None
    except (ValueError, KeyError, TypeError):
        floors = None
    if not isinstance(floors, list):
        raise NoFloors(f"POST {target.url}/v1/floors answered {status}: {body[:200]}")
    return floors


@dataclass(frozen=True, slots=True)
class MovedFloor:
    """A floor whose intervals before and after the sweep are disjoint; `ratio` is after / before.

    By its `witness`: the hollow twin, or the sampled stacks.
    """

    mode: str
    phase: str
    batch: int
    ratio: float
    witness: str = "twin"

    @property
    def name(self) -> str:
        """'compiled decode b=4 ×1.21 (stacks)'."""
        return f"{self.mode} {self.phase} b={self.batch} ×{self.ratio:.2f} ({self.witness})"


def moved_floors(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[MovedFloor]:
    """The floors that moved further than their intervals allow, by either witness, the worst first.

    A twin that stands for other batches is counted once.
    """
    earlier = {_key(floor): floor for floor in before}
    moved = []
    for floor in after:
        first = earlier.get(_key(floor))
        if first is None:
            continue
        if floor.get("source") != "smallest_batch" and _disjoint(_twin(first), _twin(floor)):
            moved.append(MovedFloor(*_key(floor), floor["seconds"] / first["seconds"]))
        if first.get("stacks") and floor.get("stacks"):
            was, is_now = stacks_dispatch(first["stacks"]), stacks_dispatch(floor["stacks"])
            if _disjoint(was, is_now):
                moved.append(MovedFloor(*_key(floor), is_now[0] / was[0], "stacks"))
    return sorted(moved, key=lambda one: max(one.ratio, 1 / one.ratio), reverse=True)


def stacks_dispatch(stacks: Mapping[str, Any]) -> tuple[float, float, float]:
    """Dispatch seconds of one step by sampled stacks, with the ends of its interval.

    A floor without these seconds (of 30a3a3a9) has them from its share and its median step.
    """
    if "dispatch_seconds" in stacks:
        return stacks["dispatch_seconds"], stacks["dispatch_low_seconds"], stacks["dispatch_high_seconds"]
    seconds = stacks["step_seconds"]
    value, low, high = (seconds * (1 - stacks[end]) for end in ("kernel_share", "high", "low"))
    return value, low, high


def _disjoint(first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> bool:
    """Whether two (value, low, high) have intervals, and these do not touch."""
    if None in first or None in second:
        return False
    return bool(second[1] > first[2] or second[2] < first[1])


def _twin(floor: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return floor["seconds"], floor["low"], floor["high"]


def _key(floor: Mapping[str, Any]) -> tuple[str, str, int]:
    return floor["mode"], floor["phase"], floor["batch"]
