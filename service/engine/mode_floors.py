"""The dispatch floors of the modes that serve: by both witnesses, for requests, reports and the front."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from service.engine.capture import PHASES
from service.engine.configured_mode import ConfiguredMode
from service.engine.stack_shares import StackShares
from service.protocol.floors import Floor
from service.protocol.messages import FloorSamples, Phase
from service.step.calibration import Calibration


class ModeFloors:
    """What `calibration` has sampled of the twins, and `stacks` of the real steps, of every mode in `ready`.

    `announce` sends the floors of one mode to the front.
    """

    def __init__(
        self,
        calibration: Calibration,
        stacks: StackShares,
        buckets: Iterable[int],
        ready: Callable[[], Mapping[str, ConfiguredMode]],
        announce: Callable[[ConfiguredMode, list[Floor]], None],
    ) -> None:
        self._calibration = calibration
        self.stacks = stacks
        self._buckets = list(buckets)
        self._ready = ready
        self._announce = announce

    def of(self, mode: str, phase: Phase, bucket: int) -> Floor | None:
        """Dispatch of one step, by both witnesses; None before it is calibrated."""
        floor = self._calibration.floor(mode, phase, bucket)
        if floor is None:
            return None
        return msgspec.structs.replace(floor, stacks=self.stacks.share(mode, phase, bucket))

    def of_mode(self, mode: str) -> list[Floor]:
        """Those of all its phases and buckets that are calibrated."""
        floors = (self.of(mode, phase, bucket) for phase in PHASES for bucket in self._buckets)
        return [floor for floor in floors if floor]

    def recalibrate(self) -> Iterator[None]:
        """Take the floors of all ready modes again, by both witnesses; yields where other work does no harm.

        The stacks of a mode change only at the end, all at once.
        """
        self._calibration.resample()
        yield from self.stacks.resample(self._ready())
        self._announce_all()

    def samples(self) -> list[FloorSamples]:
        """The floors of all ready modes with the twin's samples."""
        return [
            FloorSamples(
                mode=name,
                floor=floor,
                samples_seconds=list(self._calibration.samples(name, floor.phase, floor.batch)),
            )
            for name in self._ready()
            for floor in self.of_mode(name)
        ]

    def announce_round(self) -> None:
        """Send the current floors of all ready modes, once per round of refreshes over the twins."""
        if self._calibration.round_complete:
            self._announce_all()

    def _announce_all(self) -> None:
        for name, configured in self._ready().items():
            self._announce(configured, self.of_mode(name))
