"""The two witnesses of the split on a CPU: the hollow twin, and native stacks sampled in the same engine.

Stacks are those of a visit's own samples, where requests were sampled, else those that were taken at rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from loadtests.report.formatting import level
from loadtests.report.payback import bucket_of
from loadtests.report.verdict import Findings
from service.statistics.intervals import Interval

AGREEING = 0.1
"""A larger difference is not called agreement, even where the intervals are wide enough to hold it."""


@dataclass(frozen=True, slots=True)
class Witness:
    """Kernel's share of one step, by the twin's floor and by the engine's sampled native stacks."""

    mode: str
    phase: str
    batch: int
    twin: Interval
    stacks: Interval

    @property
    def case(self) -> str:
        """The step in words."""
        return f"{self.mode}, {self.phase}, batch {self.batch}"

    @property
    def difference(self) -> float:
        """How far the two lie apart, as a share; above 0: the twin says more kernel."""
        return self.twin.value - self.stacks.value


def witnesses(findings: Findings) -> Iterator[Witness]:
    """Every (mode, phase, batch) of the main conditions whose native stacks were sampled."""
    run = findings.results.run
    buckets = run.engine.get("batch_buckets") or []
    stacks = {
        (floor["mode"], floor["phase"], floor["batch"]): floor
        for floor in [*run.floors_before, *run.floors_after]
        if floor.get("stacks")
    }
    for verdict in findings.main:
        for summary in verdict.modes:
            for phase in summary.phases:
                floor = stacks.get((summary.cell.mode, phase.name, bucket_of(verdict.batch_size, buckets)))
                wall = phase.step_wall_seconds
                if floor is None or not wall:
                    continue
                if phase.samples is None:
                    twin = _share_left(floor, floor["stacks"]["step_seconds"])
                    seen = _interval(floor["stacks"], "kernel_share")
                elif phase.index is not None and phase.interval is not None:
                    twin, seen = _share_left(floor, wall), phase.interval
                else:
                    continue
                yield Witness(findings.label(summary.cell.mode), phase.name, verdict.batch_size, twin, seen)


def _share_left(floor: dict[str, Any], wall: float) -> Interval:
    """Kernel's share of a step by the twin: 1 − floor / wall, at least 0; ends without a value are open."""
    slowest, fastest = (wall if floor["high"] is None else floor["high"]), floor["low"] or 0.0
    value, low, high = (max(0.0, 1 - seconds / wall) for seconds in (floor["seconds"], slowest, fastest))
    return Interval(value, low, high, int(floor["samples"]))


def _interval(found: dict[str, Any], name: str) -> Interval:
    low, high = found["low"] or 0.0, 1.0 if found["high"] is None else found["high"]
    return Interval(found[name], low, high, int(found["samples"]))


def witnesses_told(seen: list[Witness], findings: Findings) -> Iterator[str]:
    """How far the two lie apart at most, and what was not sampled."""
    steps = [(s, p) for v in findings.main for s in v.modes for p in s.phases if p.step_wall_seconds]
    if steps and all(phase.samples is not None for _, phase in steps):
        yield _beside_samples(seen, sum(phase.samples or 0 for _, phase in steps), findings.misclassed)
        return
    if not seen:
        return
    yield _compared(seen)
    if len(seen) < len(steps):
        combinations = f"{len(seen)} of {len(steps)} combinations of mode, phase and batch"
        yield f"Native stacks were sampled for {combinations}."


def _beside_samples(seen: list[Witness], samples: int, misclassed: float) -> str:
    """Where requests were sampled no interval rests on the two, which were taken before and after."""
    taken = "taken while one request of each cell and round ran"
    allowed = f"up to {level(misclassed)} of either part may be the other's"
    told = f"Dispatch and kernel rest on {samples:,} samples of steps, {taken}; {allowed}"
    if not seen:
        return f"{told}."
    high = max(seen, key=lambda witness: -witness.difference)
    if -high.difference > AGREEING and high.twin.high < high.stacks.low:
        return (
            f"{told}; the hollow twin, which should read less dispatch than samples do, reads up to "
            f"{-100 * high.difference:.0f} points more ({high.case}): one of the two is wrong here."
        )
    low = max(seen, key=lambda witness: witness.difference)
    fewer = f", and up to {-100 * high.difference:.0f} fewer ({high.case})" if high.difference < 0 else ""
    return (
        f"{told}. The hollow twin, a lower estimate of dispatch that lacks what kernels do to the host's "
        f"caches, would leave up to {100 * low.difference:.0f} points more for kernels ({low.case}){fewer}."
    )


def _compared(seen: list[Witness]) -> str:
    worst = max(seen, key=lambda witness: abs(witness.difference))
    points = f"{100 * abs(worst.difference):.0f} points"
    shares = f"{worst.twin.value:.0%} kernel by the twin, {worst.stacks.value:.0%} by sampled native stacks"
    apart = worst.twin.low > worst.stacks.high or worst.stacks.low > worst.twin.high
    verb = "disagree by up to" if apart else "differ, within their own intervals, by up to"
    if not apart and abs(worst.difference) <= AGREEING:
        verb = "agree within"
    reach = "every interval reaches from one to the other"
    return (
        f"On this machine the two witnesses of the split {verb} {points} ({worst.case}: {shares}); {reach}."
    )
