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
    """A floor whose intervals before and after the sweep are disjoint; `ratio` is after / before."""

    mode: str
    phase: str
    batch: int
    ratio: float

    @property
    def name(self) -> str:
        """'compiled decode b=4 ×1.21'."""
        return f"{self.mode} {self.phase} b={self.batch} ×{self.ratio:.2f}"


def moved_floors(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[MovedFloor]:
    """The floors that moved further than their intervals allow, the worst first."""
    earlier = {_key(floor): floor for floor in before}
    moved = []
    for floor in after:
        first = earlier.get(_key(floor))
        if first is None or None in (*_ends(first), *_ends(floor)):
            continue
        if floor["low"] > first["high"] or floor["high"] < first["low"]:
            moved.append(MovedFloor(*_key(floor), floor["seconds"] / first["seconds"]))
    return sorted(moved, key=lambda one: max(one.ratio, 1 / one.ratio), reverse=True)


def _key(floor: Mapping[str, Any]) -> tuple[str, str, int]:
    return floor["mode"], floor["phase"], floor["batch"]


def _ends(floor: Mapping[str, Any]) -> tuple[float | None, float | None]:
    return floor["low"], floor["high"]
