"""A comparison as a document for programs, as a Markdown table, and on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtests.compare.verdict import BuildComparison
from loadtests.compare.wording import change, headline, percent, sentences, why
from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import milliseconds

WIDTH = 150
"""Character columns of a table that is printed to a file or a pipe."""

STYLE = {"faster": "green", "slower": "red", "no detectable difference": "dim"}

HEADS = (
    "cell", "before", "after", "latency", "verdict", f"against {BASELINE}", "", "at most", "could show",
    "where it went",
)  # fmt: skip
"""`at most`: the one-sided 95 % bound. `could show`: the smallest detectable slow-down."""


def document(found: BuildComparison) -> dict[str, Any]:
    """Everything in plain values: ratios are after / before, seconds are seconds."""
    return {
        "headline": headline(found),
        "decision": found.decision,
        "allowed": found.allowed,
        "before": _side(found.before.path, len(found.before.sweeps)),
        "after": _side(found.after.path, len(found.after.sweeps)),
        "unlike": [msgspec.to_builtins(one) for one in found.forced],
        "differs": [msgspec.to_builtins(one) for one in found.said],
        "unit": found.unit,
        "in_turn": found.in_turn,
        "confidence": found.confidence,
        "cells": list(_cells(found)),
        "left_out": found.left_out,
    }


def _side(path: object, sweeps: int) -> dict[str, Any]:
    return {"path": str(path), "sweeps": sweeps}


def _cells(found: BuildComparison) -> Iterator[dict[str, Any]]:
    for one in found.changes:
        relative = found.relative(one)
        yield {
            "cell": one.cell.name,
            "mode": one.cell.mode,
            "batch_size": one.cell.batch_size,
            "before_seconds": one.before_seconds,
            "after_seconds": one.after_seconds,
            "rounds": list(one.rounds),
            "ratio": msgspec.to_builtins(found.change(one)),
            "word": found.word(one),
            "at_most": one.latency.at_most(),
            "smallest_detectable": one.latency.smallest_detectable(found.confidence),
            "ratio_against_baseline": None if relative is None else msgspec.to_builtins(relative),
            "word_against_baseline": found.relative_word(one),
            "parts_change_seconds": one.parts,
        }


def _rows(found: BuildComparison) -> Iterator[tuple[str, ...]]:
    """The table's cells as text, in the order of HEADS."""
    for one in found.changes:
        yield (
            one.cell.name,
            milliseconds(one.before_seconds),
            milliseconds(one.after_seconds),
            change(found.change(one)),
            found.word(one),
            change(found.relative(one)),
            found.relative_word(one) or "",
            percent(one.latency.at_most()),
            percent(one.latency.smallest_detectable(found.confidence)),
            why(found, one),
        )


def markdown(found: BuildComparison) -> str:
    """The verdict, the table and the sentences, for a pull request."""
    lines = [f"**{headline(found)}**", "", f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    lines += [f"| {' | '.join(row)} |" for row in _rows(found)]
    lines += ["", *(f"- {sentence}" for sentence in sentences(found)), ""]
    return "\n".join(lines)


def print_comparison(found: BuildComparison, console: Console) -> None:
    """The verdict, the table and the sentences on a terminal."""
    if not console.is_terminal and console.width < WIDTH:
        console = Console(file=console.file, width=WIDTH)
    console.print(Text(headline(found), style="bold"), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    rows = list(_rows(found))
    shown = [place for place, head in enumerate(HEADS) if head and any(row[place] for row in rows)]
    for place in shown:
        left = HEADS[place] in ("cell", "verdict", "where it went")
        table.add_column(HEADS[place], justify="left" if left else "right", no_wrap=HEADS[place] != HEADS[-1])
    for row in rows:
        table.add_row(*(Text(row[place], style=STYLE.get(row[place], "")) for place in shown))
    console.print(table)
    for sentence in sentences(found):
        console.print(Text(sentence), soft_wrap=True)
