"""Sweeps of one build together, as text for the page and as numbers for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.plan.cells import MINIMUM_ROUNDS, Group
from loadtests.report import formatting, wording
from loadtests.report.crossing import crossing
from loadtests.report.plotting import colour
from loadtests.report.summaries import Verdict
from loadtests.side_by_side.entry import Entry
from loadtests.side_by_side.repeats import RepeatedGroup, Repeats
from service.statistics.intervals import Interval, as_json
from service.statistics.looks import CONFIDENCE
from service.statistics.repeats import OverSweeps

RARE = 1 - CONFIDENCE
"""Sweeps whose scatter has a smaller chance scatter by more than their rounds."""


def repeats_headline(found: Repeats, places: Mapping[Group, str]) -> str:
    """Which mode the sweeps name at which batch, and where their answers do not agree."""
    sweeps = len(found.entries)
    agreed: dict[tuple[str, int], list[str]] = {}
    apart: dict[int, list[str]] = {}
    for one in found.groups:
        if one.named is not None and one.replicates:
            agreed.setdefault((_called(one, one.named), one.naming), []).append(places[one.group])
        else:
            apart.setdefault(one.naming, []).append(places[one.group])
    parts = [
        f"{mode} in {naming} of {sweeps} at {formatting.listed(at)}" for (mode, naming), at in agreed.items()
    ]
    said = [f"{sweeps} sweeps of one build agree, alone or in a tie: {'; '.join(parts)}."] if parts else []
    for most, at in apart.items():
        said.append(f"The answer does not replicate at {formatting.listed(at)}: {_at_most(most, sweeps)}.")
    return " ".join(said)


def _at_most(most: int, sweeps: int) -> str:
    if most == 0:
        return f"fewer than {MINIMUM_ROUNDS} rounds decide nothing"
    return f"no mode is in more than {most} of {sweeps}"


def repeats_view(found: Repeats | None, places: Mapping[Group, str]) -> dict[str, Any] | None:
    """The section's contents; None where there is none."""
    if found is None:
        return None
    return {
        "sweeps": len(found.entries),
        "groups": [_group(one, found.entries, places[one.group]) for one in found.groups],
        "crossings": [
            {"name": entry.name, "text": crossing(entry.findings.crossover, entry.findings.estimated)}
            for entry in found.entries
        ],
    }


def _group(found: RepeatedGroup, entries: Sequence[Entry], place: str) -> dict[str, Any]:
    return {
        "place": place,
        "agreement": _agreement(found),
        "replicates": found.replicates,
        "rows": [
            {
                "letter": entry.letter,
                "label": entry.label,
                "colour": entry.colour,
                "answer": " = ".join(_called(found, mode) for mode in found.answers[number]) or "undecided",
                "gain": _shipped_gain(found.verdicts[number]),
                "index": _index(decode.index, decode.interval),
                "bound": wording.limit(decode) or formatting.UNKNOWN,
            }
            for number, (entry, decode) in enumerate(zip(entries, found.decodes, strict=True))
        ],
        "index": "–" if found.index is None else _index(found.index.value, found.index),
        "named": None if found.named is None else _called(found, found.named),
        "gains": [
            {
                "mode": _called(found, mode),
                "colour": colour(mode),
                "ratio": _ratio(gain.ratio),
                "scatter": _scatter(gain),
                "over_named": _ratio(over.ratio) if (over := found.over_named.get(mode)) else "–",
            }
            for mode, gain in found.gains.items()
        ],
    }


def _agreement(found: RepeatedGroup) -> str:
    """'compiled is in 5 of 5 answers, and alone in 2.'"""
    if found.named is None:
        return f"Undecided: fewer than {MINIMUM_ROUNDS} rounds decide nothing."
    sweeps = len(found.answers)
    alone = sum(answer == (found.named,) for answer in found.answers)
    text = f"{_called(found, found.named)} is in {found.naming} of {sweeps} answers, alone in {alone}"
    return f"{text}." if found.replicates else f"{text}: the answer does not replicate."


def _shipped_gain(verdict: Verdict) -> str:
    """The speed-up of the mode to ship in its own sweep; a dash for the baseline, and without one."""
    return wording.compared(verdict.shipped.comparison if verdict.shipped else None)


def _ratio(ratio: Interval) -> str:
    return f"{formatting.times(ratio.value)} ({formatting.span(ratio)})"


def _scatter(gain: OverSweeps) -> str:
    """'5.2 %', and whether that is beyond what the rounds explain."""
    chance = gain.chance
    beyond = "" if chance is None or chance >= RARE else f", beyond their rounds (p {_chance(chance)})"
    return f"{100 * gain.deviation:.1f} %{beyond}"


def _chance(chance: float) -> str:
    return "< 0.0001" if chance < 0.0001 else f"= {formatting.significant(chance, 1)}"


def _index(value: float | None, interval: Interval | None) -> str:
    return "–" if value is None else f"{value:.2f} ({formatting.share_span(interval)})"


def _called(found: RepeatedGroup, mode: str) -> str:
    """The effective mode, where a sweep says it."""
    return wording.short_name(found.verdicts[0].of(mode))


def repeats_document(found: Repeats | None) -> dict[str, Any] | None:
    """The part of `runs.json`: ratios are speed-ups over the baseline, null is what is not known."""
    if found is None:
        return None
    return {
        "sweeps": len(found.entries),
        "groups": [
            {
                "batch_size": one.group[0],
                "prompt_set": one.group[1],
                "new_tokens": one.group[2],
                "concurrency": one.group[3],
                "answers": [list(answer) for answer in one.answers],
                "named": one.named,
                "naming": one.naming,
                "replicates": one.replicates,
                "over_baseline": _document(one.gains),
                "over_named": _document(one.over_named),
                "device_bound_index": None if one.index is None else as_json(one.index),
            }
            for one in found.groups
        ],
    }


def _document(gains: Mapping[str, OverSweeps]) -> list[dict[str, Any]]:
    return [
        {"mode": mode, "speedup": as_json(gain.ratio), "deviation": gain.deviation, "chance": gain.chance}
        for mode, gain in gains.items()
    ]
