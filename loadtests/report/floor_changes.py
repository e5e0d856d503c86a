"""The dispatch floors before a sweep beside those after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadtests.report.formatting import floor_span
from loadtests.report.verdict import Findings
from loadtests.run.floors import moved_floors


@dataclass(frozen=True, slots=True)
class FloorChange:
    """One floor before and after the sweep; `moved`: further than the intervals of the two allow.

    By its `witness`, which is shown only where it is not the twin: what stands here is the twin's floor.
    """

    mode: str
    phase: str
    batch: int
    before: dict[str, Any]
    after: dict[str, Any]
    moved: bool
    witness: str = "twin"

    @property
    def spans(self) -> tuple[str, str]:
        """The intervals before and after, in µs."""
        before, after = (floor_span(floor["low"], floor["high"]) for floor in (self.before, self.after))
        return before, after

    @property
    def word(self) -> str:
        """Whether it moved; unknown without both intervals."""
        if "no interval" in self.spans:
            return "unknown"
        if self.moved:
            return "moved" if self.witness == "twin" else f"moved, by its sampled {self.witness}"
        if self.after.get("source") == "smallest_batch":
            return "that of the smallest batch"
        return "within its interval"

    @property
    def ratio(self) -> float:
        """After over before."""
        return float(self.after["seconds"] / self.before["seconds"])


def floor_changes(findings: Findings) -> list[FloorChange]:
    """Every floor that was taken before and after the sweep, in the order of the first."""
    run = findings.results.run
    after = {_key(floor): floor for floor in run.floors_after}
    found = moved_floors(run.floors_before, run.floors_after)
    moved = {(m.mode, m.phase, m.batch): m.witness for m in sorted(found, key=lambda m: m.witness == "twin")}
    return [
        FloorChange(
            findings.label(floor["mode"]), floor["phase"], floor["batch"],
            before=floor, after=after[_key(floor)],
            moved=_key(floor) in moved, witness=moved.get(_key(floor), "twin"),
        )
        for floor in run.floors_before
        if _key(floor) in after
    ]  # fmt: skip


def _key(floor: dict[str, Any]) -> tuple[str, str, int]:
    return floor["mode"], floor["phase"], floor["batch"]
