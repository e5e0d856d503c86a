"""Open-loop cells of several runs side by side: at this arrival rate, what each run serves, and how late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.report import formatting
from loadtests.report.load import sentences
from loadtests.report.load.cells import LoadCell
from loadtests.report.load.knees import Ladder, LoadGroup
from loadtests.report.plotting import colour
from loadtests.side_by_side.entry import Entry
from service.statistics.intervals import Interval

SHOWN = (0.5, 0.99)
"""Quantiles of latency."""


def load_view(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Per conditions of open-loop cells that two runs or more have: the knees, then every rate, by mode."""
    ladders: dict[Ladder, list[tuple[Entry, LoadGroup]]] = {}
    for entry in entries:
        for group in entry.findings.load.groups:
            ladders.setdefault(group.ladder, []).append((entry, group))
    return [_ladder(found) for found in ladders.values() if len(found) > 1]


def _ladder(found: Sequence[tuple[Entry, LoadGroup]]) -> dict[str, Any]:
    modes = dict.fromkeys(knee.mode for _, group in found for knee in group.knees)
    return {
        "title": sentences.conditions(found[0][1]),
        "meanings": {entry.letter: entry.findings.load.criterion.meaning for entry, _ in found},
        "quantiles": [f"p{100 * share:.0f}" for share in SHOWN],
        "knees": [row for mode in modes for row in _knees(found, mode)],
        "rates": [row for mode in modes for row in _rates(found, mode)],
    }


def _knees(found: Sequence[tuple[Entry, LoadGroup]], mode: str) -> Iterator[dict[str, Any]]:
    for entry, group in found:
        for one in group.knees:
            if one.mode == mode:
                knee, span = sentences.pair(one.estimate)
                yield {**_named(entry, mode), "knee": knee, "span": span}


def _rates(found: Sequence[tuple[Entry, LoadGroup]], mode: str) -> list[dict[str, Any]]:
    """Rates ascending; at each the runs in their order."""
    cells = [
        (one.rate, entry, one)
        for entry, group in found
        for knee in group.knees
        if knee.mode == mode
        for one in knee.cells
    ]
    return [
        {**_named(entry, mode), "offered": f"{rate:.4g}", **_numbers(one)}
        for rate, entry, one in sorted(cells, key=lambda row: (row[0], row[1].letter))
    ]


def _named(entry: Entry, mode: str) -> dict[str, str]:
    return {"letter": entry.letter, "label": entry.label, "mode": mode, "colour": colour(mode)}


def _numbers(one: LoadCell) -> dict[str, Any]:
    return {
        "effective_batch": _value(one.effective_batch),
        "served": _value(one.served_rate),
        "goodput": _value(one.goodput),
        "latencies": [_value(one.quantiles["e2e"][share], 1e3) for share in SHOWN],
        "cut": f"{one.cut} of {len(one.visits)}",
    }


def _value(interval: Interval | None, scale: float = 1.0) -> str:
    if interval is None:
        return "–"
    return f"{formatting.significant(interval.value * scale)} ({formatting.span(interval, scale)})"
