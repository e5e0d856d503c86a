"""One configured mode: its row of the ladder, its warmed steps and its status."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.modes import Mode
from service.records import ModeStatus, Phase
from service.step.callables import Step


@dataclass(slots=True)
class ConfiguredMode:
    """`steps` are the mode's callables by (phase, bucket), empty until warm-up has built them.

    `captures` are the graphs that calls have captured as far as the mode promises; its status has them once
    their replay is proved.
    """

    mode: Mode
    status: ModeStatus
    steps: dict[tuple[Phase, int], Step] = field(default_factory=dict)
    captures: int = 0
