"""The steps that are compared: mode, phase and batch bucket, and the floors of all of a mode's."""

from __future__ import annotations

from typing import NamedTuple

from service.measure.cases import Bench
from service.measure.floors import new_floors
from service.protocol.messages import Phase

PHASES: tuple[Phase, ...] = ("prefill", "decode")


class Place(NamedTuple):
    """Mode, phase and batch bucket of a step."""

    mode: str
    phase: Phase
    bucket: int


def floors_of(bench: Bench, mode: str) -> dict[Place, float]:
    """Floors of `mode` at every served bucket from new samples, in seconds. Raises NoTwin."""
    found = new_floors(bench, mode, bench.settings.batch_sizes, PHASES)
    return {Place(mode, phase, bucket): floor.value for (phase, bucket), floor in found.items()}
