"""Knees as text: a value or a bound, its interval, and the sentence that compares the modes."""

from __future__ import annotations

import math
from collections.abc import Callable

from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import significant, times
from loadtests.report.load.findings import LoadFindings
from loadtests.report.load.knees import LoadGroup, ModeKnee
from service.statistics.knee import BoundedEstimate, Bounds

Label = Callable[[str], str]
"""From a mode to the name under which the report shows it."""

NO_BOUND = "unknown"


def sentence(group: LoadGroup, findings: LoadFindings, label: Label) -> str:
    """What each mode serves, and the ratios to the first: 'eager serves 61 (58–63) requests/s within …'."""
    known = [one for one in group.knees if one.estimate]
    if not known:
        return f"{conditions(group)}: what decides was not measured in all visits: there is no knee."
    first, *others = known
    parts = [f"{label(first.mode)} serves {_estimate(first)} requests/s {findings.criterion.within}"]
    for other in others:
        ratio = group.ratio(first.mode, other.mode)
        compared = f": {ratio_text(ratio)}" if ratio and bounds(ratio.value) != NO_BOUND else ""
        parts.append(f"{label(other.mode)} {_estimate(other)}{compared}")
    return f"{conditions(group)}: {'; '.join(parts)}."


def reference(group: LoadGroup) -> str:
    """The mode with which the others of a group are compared."""
    modes = [one.mode for one in group.knees]
    return BASELINE if BASELINE in modes else modes[0]


def conditions(group: LoadGroup) -> str:
    """'Batch 1, short prompts, 32 new tokens, Poisson arrivals'."""
    batch, prompts, tokens, arrivals = group.ladder
    kind = "Poisson" if arrivals == "poisson" else arrivals
    return f"Batch {batch}, {prompts} prompts, {tokens} new tokens, {kind} arrivals"


def ratio_text(ratio: BoundedEstimate) -> str:
    """'1.93 times (1.88–1.99)'."""
    return f"{bounds(ratio.value)} times ({interval(ratio)})"


def times_text(ratio: BoundedEstimate | None) -> str:
    """'1.93×', 'at least 1.9×', or a dash."""
    if ratio is None or bounds(ratio.value) == NO_BOUND:
        return "–"
    return times(ratio.value.low) if ratio.value.known else f"{bounds(ratio.value)}×"


def bounds(value: Bounds) -> str:
    """'61.2', 'at least 120', 'below 40', or that nothing is known."""
    if value.known:
        return significant(value.low)
    if value.low > 0:
        return f"at least {significant(value.low)}"
    return NO_BOUND if math.isinf(value.high) else f"below {significant(value.high)}"


def interval(estimate: BoundedEstimate) -> str:
    """'58–63'; an open end is said."""
    low, high = estimate.low, estimate.high
    if low > 0 and math.isfinite(high):
        return f"{significant(low)}–{significant(high)}"
    if low > 0:
        return f"{significant(low)} or more"
    return f"{significant(high)} or less" if math.isfinite(high) else "no interval"


def _estimate(one: ModeKnee) -> str:
    """A bound that is its interval's end too is said once."""
    estimate = one.estimate
    if estimate is None:
        return "unknown"
    value = bounds(estimate.value)
    alike = not estimate.value.known and (estimate.low, estimate.high) == (
        estimate.value.low,
        estimate.value.high,
    )
    return value if alike else f"{value} ({interval(estimate)})"
