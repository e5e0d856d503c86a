"""What precision buys, as numbers for programs: seconds, ratios with intervals, null where there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.plan.cells import BASELINE
from loadtests.side_by_side.between_runs import Place
from loadtests.side_by_side.entry import Entry
from loadtests.side_by_side.precisions import AtGroup, Bought, Precisions
from loadtests.side_by_side.texts import Agreement
from service.statistics.builds import LATENCY_SCATTER
from service.statistics.intervals import as_json


def precision_document(found: Precisions | None) -> dict[str, Any] | None:
    """The part of `runs.json`; `speedup` is the reference's latency over the run's own in the same mode."""
    if found is None:
        return None
    return {
        "reference": found.reference.letter,
        "baseline": BASELINE,
        "scatter": LATENCY_SCATTER.deviation,
        "groups": [_group(one, found.entries) for one in found.groups],
        "distances": [
            _distance(entry, texts) for entry, texts in zip(found.entries, found.agreements, strict=True)
        ],
    }


def _group(found: AtGroup, entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "batch_size": found.group[0],
        "fastest": _place(found.fastest),
        "not_apart": [_place(place) for place in found.near],
        "modes": [
            {
                "mode": mode,
                "runs": [_bought(one, entry) for one, entry in zip(bought, entries, strict=True)],
            }
            for mode, bought in found.bought.items()
        ],
        "noise": [
            {"run": entry.letter, "ratio": None if one is None else as_json(one)}
            for one, entry in zip(found.noise, entries, strict=True)
        ],
    }


def _place(place: Place) -> dict[str, Any]:
    mode, latency = place.summary.cell.mode, as_json(place.summary.latency)
    return {"run": place.entry.letter, "mode": mode, "latency_seconds": latency}


def _bought(one: Bought | None, entry: Entry) -> dict[str, Any]:
    speedup, over_rounds = (None, None) if one is None else (one.speedup, one.over_rounds)
    return {
        "run": entry.letter,
        "speedup": None if speedup is None else as_json(speedup),
        "speedup_over_rounds": None if over_rounds is None else as_json(over_rounds),
        "word": None if one is None else one.word,
    }


def _distance(entry: Entry, texts: Agreement | None) -> dict[str, Any]:
    return {
        "run": entry.letter,
        "equal_texts": None if texts is None else texts.equal,
        "requests": None if texts is None else texts.requests,
        "parity_in_run": worst_parity(entry),
    }


def worst_parity(entry: Entry) -> Mapping[str, Any] | None:
    """The verdict of the mode that is furthest from the baseline of its own run; None: none was checked."""
    run = entry.findings.results.run
    known = [parity for mode in run.plan.modes if (parity := run.mode(mode).get("parity"))]
    return max(known, key=lambda one: float(one["max_abs_logit_difference"]), default=None)
