"""Floors as they are computed from their samples: once, until samples are added."""

from __future__ import annotations

from service.engine.mode_floors import ModeFloors
from service.engine.request_profiler import PHASES
from service.protocol.floors import Floor
from service.protocol.messages import Phase


class KnownFloors:
    """What `floors` said of a mode and bucket when it was first asked since the last `clear`."""

    def __init__(self, floors: ModeFloors) -> None:
        self._floors = floors
        self._known: dict[tuple[str, int], dict[Phase, Floor | None]] = {}

    def clear(self) -> None:
        """Samples may have been added."""
        self._known.clear()

    def of(self, mode: str, bucket: int) -> dict[Phase, Floor | None]:
        """The floors of both phases."""
        known = self._known.get((mode, bucket))
        if known is None:
            known = {phase: self._floors.of(mode, phase, bucket) for phase in PHASES}
            self._known[mode, bucket] = known
        return known
