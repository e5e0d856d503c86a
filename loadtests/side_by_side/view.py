"""The contents of the picture as plain values: who wins where, the runs, and their modes side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Group
from loadtests.report import formatting, wording
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary
from loadtests.side_by_side.between_runs import SCATTER_TEXT, place_of, told_apart
from loadtests.side_by_side.entry import FACTS, Entry, best, differing
from loadtests.side_by_side.load_view import load_view
from loadtests.side_by_side.precision_view import precision_view
from loadtests.side_by_side.precisions import Precisions
from loadtests.side_by_side.repeats import Repeats
from loadtests.side_by_side.repeats_view import repeats_headline, repeats_view
from service.statistics.intervals import as_json


def groups(entries: Sequence[Entry]) -> list[Group]:
    """The closed-loop groups that two runs or more have, by their other conditions and batch size.

    Of a single run, which is what is left of several that failed, all of its groups.
    """
    counts: dict[Group, int] = {}
    for entry in entries:
        for verdict in entry.findings.verdicts:
            counts[verdict.group] = counts.get(verdict.group, 0) + 1
    least = min(2, len(entries))
    shared = (group for group, count in counts.items() if count >= least)
    return sorted(shared, key=lambda one: (one[1:4], one[0]))


def view(
    entries: Sequence[Entry],
    precisions: Precisions | None,
    absent: Mapping[str, str],
    repeats: Repeats | None = None,
) -> dict[str, Any]:
    """Everything the templates need, save the plots; `absent`: runs without results, and why.

    With `repeats` the question is not which run is fastest but whether they agree.
    """
    shared = groups(entries)
    apart = differing(entries)
    load = load_view(entries)
    places = {group: place_of_group(group, shared) for group in shared}
    if repeats is None:
        answer = headline(entries, shared, absent, under_load=bool(load))
    else:
        answer = warning(entries, absent) + repeats_headline(repeats, places)
    return {
        "headline": answer,
        "repeats": repeats_view(repeats, places),
        "load": load,
        "absent": absent,
        "precision": precision_view(precisions),
        "scatter": SCATTER_TEXT,
        "least_rounds": MINIMUM_ROUNDS,
        "differing": apart,
        "alike": {fact: entries[0].facts[fact] for fact in FACTS if fact not in apart},
        "runs": [_run(entry) for entry in entries],
        "cards": [_card(entries, group) for group in shared],
        "speedups": [_speedups(entries, group) for group in shared],
        "baseline": BASELINE,
    }


def headline(
    entries: Sequence[Entry], shared: Sequence[Group], absent: Mapping[str, str], under_load: bool = False
) -> str:
    """Which run is fastest at which batch, and where none is; before it, what is not valid or not there."""
    mark = warning(entries, absent)
    if not shared and under_load:
        return f"{mark}These runs have open-loop cells in common alone: their knees and rates stand below."
    if not shared:
        return f"{mark}These runs have no cells in common: nothing stands side by side."
    at: dict[str, list[str]] = {}
    alike: list[str] = []
    for group in shared:
        place = place_of_group(group, shared)
        if _alike(entries, group):
            alike.append(place)
        else:
            winner, _ = ranked(entries, group)[0]
            at.setdefault(winner.name, []).append(place + _not_apart(_near(entries, group)))
    parts = [f"{who} at {formatting.listed(places)}" for who, places in at.items()]
    won = [f"Lowest latency: {'; '.join(parts)}."] if parts else []
    tied = [f"The runs are not told apart at {formatting.listed(alike)}."] if alike else []
    return mark + " ".join(won + tied)


def warning(entries: Sequence[Entry], absent: Mapping[str, str]) -> str:
    """What stands before every answer: the runs that are not valid, and those that are not there."""
    bad = [entry.name for entry in entries if not entry.valid]
    mark = f"NOT VALID: {formatting.listed(bad)}. " if bad else ""
    return mark + (f"NOT MEASURED: {formatting.listed(list(absent))}. " if absent else "")


def place_of_group(group: Group, shared: Sequence[Group]) -> str:
    """'batch 4', with those of its other conditions in which the runs' cells differ."""
    batch, prompts, tokens, concurrency, _ = group
    words = (prompts, f"{tokens} tokens", f"c={concurrency}")
    differ = [len({one[place] for one in shared}) > 1 for place in (1, 2, 3)]
    conditions = ", ".join(word for word, told in zip(words, differ, strict=True) if told)
    return f"batch {batch}" + (f" ({conditions})" if conditions else "")


def ranked(entries: Sequence[Entry], group: Group) -> list[tuple[Entry, Summary]]:
    """The runs that have `group` with their best mode there, the lowest latency first."""
    found = [(entry, best(verdict)) for entry in entries if (verdict := entry.verdict(group))]
    return sorted(found, key=lambda one: one[1].latency.value)


def _near(entries: Sequence[Entry], group: Group) -> list[str]:
    """The runs that are not told apart from the lowest one."""
    (first, lowest), *others = ranked(entries, group)
    fastest = place_of(first, lowest)
    return sorted(entry.letter for entry, one in others if not told_apart(place_of(entry, one), fastest))


def _alike(entries: Sequence[Entry], group: Group) -> bool:
    """Whether the lowest of several runs is not apart from any other."""
    return 0 < len(_near(entries, group)) == len(ranked(entries, group)) - 1


def _not_apart(near: list[str]) -> str:
    return f" (not apart from {formatting.listed(near)})" if near else ""


def _winner(entries: Sequence[Entry], group: Group) -> str:
    """The run with the lowest latency and its mode, and those that it is not apart from."""
    first, lowest = ranked(entries, group)[0]
    return f"{first.name} with {wording.short_name(lowest)}{_not_apart(_near(entries, group))}"


def _run(entry: Entry) -> dict[str, Any]:
    run = entry.findings.results.run
    return {
        "letter": entry.letter,
        "label": entry.label,
        "colour": entry.colour,
        "facts": entry.facts,
        "folder": entry.findings.results.folder.name,
        "started": run.started,
        "rounds": len(run.order),
        "failed": [gate.name for gate in entry.findings.results.failed_gates],
        "headline": wording.headline(entry.findings),
    }


def _card(entries: Sequence[Entry], group: Group) -> dict[str, Any]:
    _, prompts, tokens, concurrency, _ = group
    rows = ranked(entries, group)
    slowest = max(summary.latency.value for _, summary in rows)
    return {
        "batch": group[0],
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "winner": _winner(entries, group),
        "alike": _alike(entries, group),
        "rows": [_row(entry, summary, slowest) for entry, summary in rows],
    }


def _row(entry: Entry, summary: Summary, slowest: float) -> dict[str, Any]:
    comparison = summary.comparison
    return {
        "letter": entry.letter,
        "label": entry.label,
        "colour": entry.colour,
        "mode": wording.short_name(summary),
        "share": 100 * summary.latency.value / slowest,
        "latency": formatting.milliseconds(summary.latency.value),
        "latency_span": formatting.span(summary.latency, 1e3),
        "tokens": formatting.significant(summary.tokens_per_second.value),
        "tokens_span": formatting.span(summary.tokens_per_second),
        "speedup": wording.compared(comparison),
        "bound": wording.limit(summary.decode) or formatting.UNKNOWN,
        "numbers": {
            "run": entry.letter,
            "mode": summary.cell.mode,
            "effective": summary.effective,
            "latency_seconds": as_json(summary.latency),
            "tokens_per_second": as_json(summary.tokens_per_second),
            "speedup": as_json(comparison.speedup) if comparison else None,
        },
    }


def _speedups(entries: Sequence[Entry], group: Group) -> dict[str, Any]:
    """Per mode its speed-up over the baseline in each run, paired within that run alone."""
    verdicts = [entry.verdict(group) for entry in entries]
    modes = dict.fromkeys(s.cell.mode for verdict in verdicts if verdict for s in verdict.modes)
    return {
        "batch": group[0],
        "rows": [
            {"mode": mode, "colour": colour(mode), "cells": list(_speedup_cells(verdicts, mode))}
            for mode in modes
            if mode != BASELINE
        ],
    }


def _speedup_cells(verdicts: Sequence[Any], mode: str) -> Iterator[dict[str, str]]:
    for verdict in verdicts:
        found = None
        if verdict is not None:
            found = next((s.comparison for s in verdict.modes if s.cell.mode == mode), None)
        yield {"text": wording.compared(found), "word": found.word if found else ""}
