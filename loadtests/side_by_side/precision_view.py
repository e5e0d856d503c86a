"""What precision buys, as text for the page."""

from __future__ import annotations

from typing import Any

from loadtests.plan.cells import MINIMUM_ROUNDS, Group
from loadtests.report import formatting, wording
from loadtests.report.plotting import colour
from loadtests.side_by_side.between_runs import Place
from loadtests.side_by_side.entry import Entry
from loadtests.side_by_side.precision_document import worst_parity
from loadtests.side_by_side.precisions import AtGroup, Bought, Precisions
from loadtests.side_by_side.texts import Agreement
from service.statistics.intervals import Interval


def precision_view(found: Precisions | None) -> dict[str, Any] | None:
    """The section's contents; None where there is none."""
    if found is None:
        return None
    return {
        "reference": found.reference.name,
        "groups": [_group(one, found) for one in found.groups],
        "distances": [
            _distance(entry, texts, found.reference)
            for entry, texts in zip(found.entries, found.agreements, strict=True)
        ],
    }


def _group(found: AtGroup, all_of: Precisions) -> dict[str, Any]:
    batch, prompts, tokens, concurrency, _ = found.group
    return {
        "batch": batch,
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "fastest": fastest_sentence(found),
        "rows": [
            {
                "mode": mode,
                "colour": colour(mode),
                "cells": [
                    _cell(one, _latency(entry, found.group, mode))
                    for one, entry in zip(bought, all_of.entries, strict=True)
                ],
            }
            for mode, bought in found.bought.items()
        ],
        "noise": [_noise(one) for one in found.noise],
    }


def fastest_sentence(found: AtGroup) -> str:
    """Which precision and mode is fastest, what the precision buys it, and what is not told apart."""
    first = found.fastest
    text = f"{_called(first)}, {formatting.milliseconds(first.summary.latency.value)}"
    ratios = [one for row in found.bought.values() for one in row if one is not None and one.place is first]
    if ratios and ratios[0].speedup is not None:
        text += f", {_ratio(ratios[0].speedup)} the speed of the same mode in the reference"
    if any(len(place.rounds) < MINIMUM_ROUNDS for place in (first, *found.near)):
        return f"{text}. Undecided: fewer than {MINIMUM_ROUNDS} rounds tell nothing apart."
    if found.near:
        return f"{text}. Not told apart from it: {formatting.listed([_called(one) for one in found.near])}."
    return f"{text}. All others are slower."


def _called(place: Place) -> str:
    """'B (bfloat16) with compiled-cpp'."""
    return f"{place.entry.name} with {wording.short_name(place.summary)}"


def _latency(entry: Entry, group: Group, mode: str) -> str | None:
    verdict = entry.verdict(group)
    found = next((one for one in verdict.modes if one.cell.mode == mode), None) if verdict else None
    return None if found is None else formatting.milliseconds(found.latency.value)


def _cell(bought: Bought | None, latency: str | None) -> dict[str, str]:
    """One mode in one run; without a ratio in the reference itself, and where either lacks the mode."""
    cell = {"latency": latency or "–", "ratio": "", "over_rounds": "", "word": ""}
    if bought is None:
        return cell
    if bought.speedup is None or bought.over_rounds is None:
        return cell | {"ratio": "one round: no interval", "word": bought.word}
    over = ""  # of few rounds it is wider than the interval with the allowance, whose scatter is better known
    if bought.over_rounds.samples >= MINIMUM_ROUNDS:
        over = f"over rounds alone {formatting.span(bought.over_rounds)}"
    return cell | {"ratio": _ratio(bought.speedup), "over_rounds": over, "word": bought.word}


def _ratio(found: Interval) -> str:
    return f"{formatting.times(found.value)} ({formatting.span(found)})"


def _noise(found: Interval | None) -> str:
    return "no control cell" if found is None else _ratio(found)


def _distance(entry: Entry, texts: Agreement | None, reference: Entry) -> dict[str, str]:
    """How far a run's outputs are from the reference's, and its modes from its own baseline."""
    equal = "not known: other prompts, or no texts kept"
    if entry is reference:
        equal = "is the reference"
    elif texts is not None:
        equal = f"{texts.equal} of {texts.requests} requests"
    worst = worst_parity(entry)
    parity = "not checked"
    if worst is not None:
        parity = f"{worst['max_abs_logit_difference']:.1e} of {worst['tolerance']:.1e} allowed"
    return {"name": entry.name, "colour": entry.colour, "texts": equal, "parity": parity}
