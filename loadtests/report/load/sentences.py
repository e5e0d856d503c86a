"""Knees as text: a value or a bound, its interval, and the sentence that compares the modes."""

from __future__ import annotations

import math
from collections.abc import Callable

from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import listed, significant
from loadtests.report.load.knees import LoadFindings, LoadGroup
from service.statistics.knee import BoundedEstimate

Label = Callable[[str], str]
"""From a mode to the name under which the report shows it."""


def sentence(group: LoadGroup, findings: LoadFindings, label: Label) -> str:
    """What each mode serves, and the ratios to the first: 'eager serves 61 (58–63) requests/s within …'.

    A mode whose rounds exclude no rate is named as such: its estimate alone would be chance that looks like a
    number.
    """
    known = [one for one in group.knees if one.estimate]
    if not known:
        return f"{conditions(group)}: what decides was not measured in all visits: there is no knee."
    told = [(one.mode, one.estimate) for one in known if one.estimate and one.estimate.tells]
    if not told:
        return f"{conditions(group)}: the rounds exclude no rate for any mode, so there is no knee: {REMEDY}."
    (first, estimate), *others = told
    parts = [f"{label(first)} serves {text_of(estimate)} requests/s {findings.criterion.within}"]
    for mode, other in others:
        ratio = group.ratio(first, mode)
        compared = f": {ratio_text(ratio)}" if ratio and ratio.tells else ""
        parts.append(f"{label(mode)} {text_of(other)}{compared}")
    if undecided := [label(one.mode) for one in known if one.estimate and not one.estimate.tells]:
        parts.append(f"the rounds exclude no rate for {listed(undecided)} ({REMEDY})")
    return f"{conditions(group)}: {'; '.join(parts)}."


REMEDY = "more requests per visit, or more rounds, would"


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
    """'1.93 times (1.88–1.99)', or 'at least 1.2 times' where its interval has one end."""
    value, span = pair(ratio)
    return f"{value} times" + (f" ({span})" if span else "")


def text_of(estimate: BoundedEstimate) -> str:
    """'61.2 (58–63)', or 'at least 58' where its interval has one end."""
    value, span = pair(estimate)
    return f"{value} ({span})" if span else value


def pair(estimate: BoundedEstimate | None, unit: str = "") -> tuple[str, str]:
    """An estimate and its interval: ('61.2', '58–63').

    With one end, the end alone: ('at least 58', ''). Without any, or without an estimate, a dash.
    """
    if estimate is None or not estimate.tells:
        return "–", "" if estimate is None else "no rate is excluded"
    low, high = estimate.low, estimate.high
    if math.isinf(high):
        return f"at least {significant(low)}{unit}", ""
    if low == 0:
        return f"below {significant(high)}{unit}", ""
    value = estimate.value
    known = significant(value.low) if value.known else None
    between = f"{significant(low)}–{significant(high)}"
    return (f"{known}{unit}", between) if known else (f"{between}{unit}", "")
