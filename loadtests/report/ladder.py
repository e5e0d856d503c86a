"""Whether the modes behave as expected: floors fall down the ladder, and modes converge as batches grow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from loadtests.plan.cells import BASELINE
from loadtests.report import formatting
from loadtests.report.comparison import slowest_over_fastest
from loadtests.report.plots_parts import smallest_floor
from loadtests.report.verdict import Findings

COLD = (
    " Floors are measured with cold caches, as in a real step: the misses cost all modes about the same, "
    "which lowers this ratio (docs/method.md, “On a CPU”)."
)


def ladder(findings: Findings) -> Iterator[str]:
    """Whether the modes behave as expected: floors fall, and modes converge as batches grow."""
    run = findings.results.run
    known = {mode: floor for mode in run.plan.ladder_modes if (floor := smallest_floor(run.mode(mode)))}
    if len(known) > 1:
        falls = _falls(list(known.values()))
        floors = [
            f"{findings.label(mode)} {formatting.microseconds(floor['seconds'])}"
            for mode, floor in known.items()
        ]
        yield f"The dispatch floor {falls} down the ladder: {', '.join(floors)}."
    if BASELINE in known and "compiled" in known:
        ratio = formatting.times(known[BASELINE]["seconds"] / known["compiled"]["seconds"])
        cold = COLD if findings.results.device == "cpu" else ""
        yield f"{BASELINE}'s floor is {ratio} that of compiled.{cold}"
    if len(findings.main) > 1:
        ends = (findings.main[0], findings.main[-1])
        spreads = [
            slowest_over_fastest({s.cell.mode: findings.results.medians(s.cell.name) for s in end.candidates})
            for end in ends
        ]
        verb = "converge" if spreads[1] < spreads[0] else "do NOT converge"
        yield (
            f"The modes {verb} as the batch grows: the slowest takes {formatting.times(spreads[0])} the"
            f" fastest's time at batch {ends[0].batch_size}, {formatting.times(spreads[1])}"
            f" at batch {ends[1].batch_size}."
        )


def _falls(floors: Sequence[Mapping[str, float]]) -> str:
    """How floors change from mode to mode: falling beyond their 95 % intervals, in value only, or not."""
    steps = list(pairwise(floors))
    if all(upper["low"] > lower["high"] for upper, lower in steps):
        return "falls strictly"
    if all(upper["seconds"] > lower["seconds"] for upper, lower in steps):
        return "falls, within the intervals' reach,"
    return "does NOT fall"
