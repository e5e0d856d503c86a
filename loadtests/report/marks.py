"""What marks a run's numbers: floors that moved, dispatch that was clipped, rounds of a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from loadtests.report import formatting
from loadtests.report.verdict import Findings
from loadtests.run.run_file import RoundMachine

MOST_STEAL = 0.01
"""Share of a round's time that the hypervisor gave to others."""

MOST_CANARY_CHANGE = 1.25
"""Factor between a round's rate of reading memory and the median round's."""


@dataclass(frozen=True, slots=True)
class FloorChange:
    """One floor before and after the sweep. `moved`: their 95 % intervals do not overlap."""

    mode: str
    phase: str
    batch: int
    before: dict[str, Any]
    after: dict[str, Any]

    @property
    def moved(self) -> bool:
        """Whether the floor lies elsewhere after the sweep than before it."""
        return bool(self.before["low"] > self.after["high"] or self.after["low"] > self.before["high"])

    @property
    def ratio(self) -> float:
        """After over before."""
        return float(self.after["seconds"] / self.before["seconds"])


def floor_changes(findings: Findings) -> list[FloorChange]:
    """Every floor that was taken before and after the sweep, in the order of the first."""
    run = findings.results.run
    after = {_key(floor): floor for floor in run.floors_after}
    return [
        FloorChange(*_key(floor), before=floor, after=after[_key(floor)])
        for floor in run.floors_before
        if _key(floor) in after
    ]


def _key(floor: dict[str, Any]) -> tuple[str, str, int]:
    return floor["mode"], floor["phase"], floor["batch"]


def busy_rounds(findings: Findings) -> list[RoundMachine]:
    """Rounds in which the machine was slower or shared: steal time, or another rate of reading memory."""
    rounds = findings.results.run.machine_by_round
    rates = [r.canary_bytes_per_second for r in rounds if r.canary_bytes_per_second]
    usual = median(rates) if rates else None
    return [r for r in rounds if (r.steal_share or 0) > MOST_STEAL or _jumped(r, usual)]


def _jumped(machine: RoundMachine, usual: float | None) -> bool:
    rate = machine.canary_bytes_per_second
    if not rate or not usual:
        return False
    return not 1 / MOST_CANARY_CHANGE <= rate / usual <= MOST_CANARY_CHANGE


def marks(findings: Findings) -> Iterator[str]:
    """A sentence per kind of mark that this run carries."""
    if clipped := sum(summary.clipped for summary in findings.summaries):
        requests = sum(summary.requests for summary in findings.summaries)
        yield (
            f"clipped: in {clipped:,} phases of {requests:,} requests the estimated dispatch was longer than "
            "the wall time and was cut to it"
        )
    if moved := [change for change in floor_changes(findings) if change.moved]:
        worst = max(moved, key=lambda change: max(change.ratio, 1 / change.ratio))
        case = f"{findings.label(worst.mode)} {worst.phase} batch {worst.batch}"
        count = f"{len(moved)} of {len(floor_changes(findings))} beyond their intervals"
        yield f"floors moved during the sweep: {count}, most {case}, {formatting.times(worst.ratio)}"
    if busy := busy_rounds(findings):
        yield f"marked rounds: {formatting.listed([_round(r) for r in busy])}"


def _round(machine: RoundMachine) -> str:
    steal = "" if not machine.steal_share else f", {machine.steal_share:.0%} steal"
    rate = machine.canary_bytes_per_second
    read = "" if not rate else f", memory read at {formatting.significant(rate / 1e9)} GB/s"
    return f"round {machine.round}{steal}{read}"
