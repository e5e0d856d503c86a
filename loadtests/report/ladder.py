"""Whether the modes behave as expected: dispatch down the ladder, and modes that converge as batches grow."""

from __future__ import annotations

from collections.abc import Iterator

from loadtests.report import formatting
from loadtests.report.comparison import slowest_over_fastest
from loadtests.report.verdict import Findings
from loadtests.report.wording import short_name


def ladder(findings: Findings) -> Iterator[str]:
    """A sentence on dispatch at the smallest batch, and one on the modes at both ends."""
    if not findings.main:
        return
    smallest, largest = findings.main[0], findings.main[-1]
    steps = [
        f"{short_name(one)} {formatting.microseconds(seconds)}"
        for one in smallest.candidates
        if (seconds := one.decode.step_dispatch_seconds) is not None
    ]
    if steps:
        yield f"Dispatch of a decode step at batch {smallest.batch_size}: {', '.join(steps)}."
    if largest is not smallest:
        spreads = [
            slowest_over_fastest({s.cell.mode: findings.results.medians(s.cell.name) for s in end.candidates})
            for end in (smallest, largest)
        ]
        verb = "converge" if spreads[1] < spreads[0] else "do NOT converge"
        yield (
            f"The modes {verb} as the batch grows: the slowest takes {formatting.times(spreads[0])} the"
            f" fastest's time at batch {smallest.batch_size}, {formatting.times(spreads[1])}"
            f" at batch {largest.batch_size}."
        )
