"""Floors as they are computed from their samples: once, until samples are added."""

from __future__ import annotations

from collections.abc import Callable

from service.engine.request_profiler import PHASES
from service.protocol.floors import Floor
from service.protocol.messages import Phase


class KnownFloors:
    """What `floor` said of a mode, phase and bucket when it was first asked since the last `clear`."""

    def __init__(self, floor: Callable[[str, Phase, int], Floor | None]) -> None:
        self._floor = floor
        self._known: dict[tuple[str, int], dict[Phase, Floor | None]] = {}

    def clear(self) -> None:
        """Samples may have been added."""
        self._known.clear()

    def of(self, mode: str, bucket: int) -> dict[Phase, Floor | None]:
        """The floors of both phases."""
        known = self._known.get((mode, bucket))
        if known is None:
            known = {phase: self._floor(mode, phase, bucket) for phase in PHASES}
            self._known[mode, bucket] = known
        return known
