"""`launchbound compare`: two builds cell by cell, as a verdict, a table, sentences and a document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec
from rich.console import Console
from rich.text import Text as Styled

from loadtests.compare.runs import NOTED, Contrast, Side, Unlike, contrasts, read_side, swept_in_turn, unlike
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report.formatting import level, listed, milliseconds, significant
from loadtests.report.page import Table, Text, as_markdown, print_table
from loadtests.report.results import PARTS
from service.statistics.choice import (
    LATENCY_SCATTER,
    POWER,
    RATIO_SCATTER,
    Unit,
    Word,
    confidence_of,
    difference,
    word_of,
)
from service.statistics.intervals import Interval

Decision = Literal["not slower", "slower", "undecided"]

EXIT_CODES: dict[Decision | None, int] = {None: 0, "not slower": 0, "slower": 1, "undecided": 3}
"""Of the command, by the decision; None: none was asked for."""

NO_DIFFERENCE: Word = "no detectable difference"
SHOWN = 3
"""So many cells, or parts of a request, are named in a sentence."""

HEADS = (
    "cell", "before", "after", "{latency}", f"against {BASELINE}", "at most", "could show", "where it went",
)  # fmt: skip
"""`at most`: the one-sided 95 % bound. `could show`: the smallest detectable slow-down."""

LEFT_OUT = {"before", "after", "could show", "where it went"}
"""Columns that a narrow terminal has no room for."""


@dataclass(frozen=True, slots=True)
class CellChange:
    """One cell before and after; ratios are after / before, of latencies.

    `ratio_against_baseline` is that of the mode's latency over the baseline's of its own sweep; None for the
    baseline. `parts_change_seconds` are differences of means per request; None where a device has no such
    part.
    """

    cell: str
    mode: str
    batch_size: int
    before_seconds: float
    after_seconds: float
    rounds: list[int]
    ratio: Interval
    word: Word
    at_most: float
    smallest_detectable: float
    ratio_against_baseline: Interval | None
    word_against_baseline: Word | None
    parts_change_seconds: dict[str, float | None]


@dataclass(frozen=True)
class BuildComparison:
    """`after` against `before`. `allowed` is the slow-down, as a share, that is still accepted.

    Each interval has `confidence`, so that all of them hold together in 95 %, and rests on `unit`.
    """

    before: Side
    after: Side
    forced: list[Contrast]
    differs: list[Contrast]
    allowed: float | None
    unit: Unit
    in_turn: bool
    confidence: float
    cells: list[CellChange]
    left_out: dict[str, str]

    def with_word(self, word: Word) -> list[CellChange]:
        return [one for one in self.cells if one.word == word]

    @property
    def decision(self) -> Decision | None:
        """Whether `after` is slower by more than `allowed`; None where nothing was asked.

        `slower`: of some cell the whole interval lies above it. `not slower`: of every cell the one-sided
        95 % bound lies within it, which needs no correction for many cells, because all have to pass (Berger
        1982, Technometrics 24). `undecided`: neither.
        """
        if self.allowed is None:
            return None
        most = 1 + self.allowed
        if any(one.ratio.low > most for one in self.cells):
            return "slower"
        return "not slower" if all(one.at_most <= most for one in self.cells) else "undecided"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.decision]


def compare_builds(
    before: Path | str, after: Path | str, *, allowed: float | None = None, force: bool = False
) -> BuildComparison:
    """Compare the sweep or sweeps in `after` with those in `before`.

    `allowed` is a slow-down as a share (0.05: 5 %). Raises RowsError for a folder that cannot be read or has
    no cell in common with the other, and Unlike, one of them, for sweeps that are not alike, unless `force`.
    """
    sides = read_side(Path(before)), read_side(Path(after))
    forced = unlike(*sides, force)
    left_out = _left_out(*sides)
    kept = [name for name in sides[0].cells if name in sides[1].cells and name not in left_out]
    if not kept:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise Unlike(
            f"{before} and {after} have no closed-loop cell to compare ({reasons or 'none measured'}): "
            "sweep both with one plan"
        )
    in_turn = swept_in_turn(*sides)
    confidence = confidence_of(len(kept))
    changes = [_change(*sides, name, in_turn, confidence) for name in kept]
    differs = contrasts((sweep.run for side in sides for sweep in side.sweeps), NOTED)
    cells, units = [change for change, _ in changes], [unit for _, unit in changes]
    return BuildComparison(*sides, forced, differs, allowed, units[0], in_turn, confidence, cells, left_out)


def _left_out(before: Side, after: Side) -> dict[str, str]:
    """The cells that are not compared, and why."""
    found = dict[str, str]()
    single = len(before.sweeps) == len(after.sweeps) == 1
    for name, cell in (before.planned | after.planned).items():
        lacking = [str(side.path) for side in (before, after) if name not in side.cells]
        if lacking:
            found[name] = f"not in every sweep of {' and '.join(lacking)}"
        elif single:
            rounds = min(len(side.latencies(cell)[0]) for side in (before, after))
            if rounds < MINIMUM_ROUNDS:
                found[name] = f"{rounds} rounds, at least {MINIMUM_ROUNDS} are needed in a single sweep"
    return dict(sorted(found.items()))


def _change(
    before: Side, after: Side, name: str, in_turn: bool, confidence: float
) -> tuple[CellChange, Unit]:
    """One cell, and what the intervals of its latencies rest on."""
    cell = before.cells[name]
    seconds = [[list(rounds.values()) for rounds in side.latencies(cell)] for side in (before, after)]
    latency = difference(seconds[0], seconds[1], LATENCY_SCATTER, in_turn)
    ratio, relative = latency.interval(confidence), None
    ratios = before.ratios(cell), after.ratios(cell)
    if ratios[0] is not None and ratios[1] is not None:
        relative = difference(ratios[0], ratios[1], RATIO_SCATTER, in_turn).interval(confidence)
    change = CellChange(
        cell=name,
        mode=cell.mode,
        batch_size=cell.batch_size,
        before_seconds=_typical(seconds[0]),
        after_seconds=_typical(seconds[1]),
        rounds=[sum(map(len, side)) for side in seconds],
        ratio=ratio,
        word=word_of(ratio),
        at_most=latency.at_most(),
        smallest_detectable=latency.smallest_detectable(confidence),
        ratio_against_baseline=relative,
        word_against_baseline=None if relative is None else word_of(relative),
        parts_change_seconds={
            part: _minus(*(side.mean_seconds(cell, f"{part}_seconds_mean") for side in (after, before)))
            for part in PARTS
        },
    )
    return change, latency.unit


def _typical(sweeps: Sequence[Sequence[float]]) -> float:
    """The geometric mean over sweeps of the geometric means over rounds."""
    return math.exp(fmean(fmean(map(math.log, rounds)) for rounds in sweeps))


def _minus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one - other


def document(found: BuildComparison) -> dict[str, Any]:
    """Everything in plain values: ratios are after / before, seconds are seconds."""
    return {
        "headline": headline(found),
        "decision": found.decision,
        "allowed": found.allowed,
        "before": {"path": str(found.before.path), "sweeps": len(found.before.sweeps)},
        "after": {"path": str(found.after.path), "sweeps": len(found.after.sweeps)},
        "unlike": msgspec.to_builtins(found.forced),
        "differs": msgspec.to_builtins(found.differs),
        "unit": found.unit,
        "in_turn": found.in_turn,
        "confidence": found.confidence,
        "cells": msgspec.to_builtins(found.cells),
        "left_out": found.left_out,
    }


DECISIONS: dict[Decision, str] = {
    "slower": "Slower by more than {}",
    "not slower": "Not slower by more than {} in any cell",
    "undecided": "Undecided whether it is slower by more than {}",
}


def headline(found: BuildComparison) -> str:
    """The verdict first, then the cells that it rests on."""
    total, parts = len(found.cells), list[str]()
    if found.decision:
        parts.append(DECISIONS[found.decision].format(f"{significant(100 * (found.allowed or 0.0))} %"))
    for word in ("slower", "faster"):
        if cells := found.with_word(word):
            parts.append(f"{len(cells)} of {total} cells {word}: {_named(cells)}")
    if len(found.with_word(NO_DIFFERENCE)) == total:
        smallest = [one.smallest_detectable for one in found.cells]
        reach = f"{percent(min(smallest)).removesuffix(' %')} to {percent(max(smallest))}"
        parts.append(f"{NO_DIFFERENCE} in any of {total} cells (could have shown {reach})")
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."


def _named(cells: list[CellChange]) -> str:
    worst = sorted(cells, key=lambda one: -abs(math.log(one.ratio.value)))
    names = [f"{one.cell} {change(one.ratio)}" for one in worst[:SHOWN]]
    return "; ".join(names) + (f"; and {len(cells) - SHOWN} more" if len(cells) > SHOWN else "")


def sentences(found: BuildComparison) -> Iterator[str]:
    """What a reader has to know of the numbers: how they were made and what they could not have shown."""
    if found.forced:
        unlike_facts = "; ".join(map(str, found.forced))
        yield f"FORCED: these are not alike, and what follows mixes it all: {unlike_facts}."
    differs = "; ".join(map(str, found.differs)) or "nothing that is recorded"
    yield f"Compared: {found.before} with {found.after}. Differs: {differs}."
    against = [one for one in found.cells if one.word != NO_DIFFERENCE and one.word_against_baseline]
    if against and all(one.word_against_baseline == NO_DIFFERENCE for one in against):
        yield (
            f"Against {BASELINE} of its own sweep no mode has moved detectably: what changed is shared by "
            "all modes, the machine or the code around the step."
        )
    yield _unit(found)
    yield (
        f"“Could show” is the smallest slow-down that {100 * POWER:.0f} % of such comparisons find. Each "
        f"interval is at {level(found.confidence)}, so that all {len(found.cells)} hold together in 95 % "
        "(Bonferroni)."
    )
    if found.decision == "undecided":
        yield "To decide it, sweep both builds in turn, several times each; see docs/sweeps.md."
    if found.left_out:
        yield f"Left out: {'; '.join(f'{name} ({reason})' for name, reason in found.left_out.items())}."


def _unit(found: BuildComparison) -> str:
    if found.unit == "pairs of sweeps":
        return f"Intervals rest on {len(found.before.sweeps)} pairs of sweeps in turn: Student's t."
    if found.unit == "sweeps":
        return (
            "Intervals rest on whole sweeps: two-sample t, their variance pooled over both builds. The "
            "builds were not swept in turn, so a machine that has changed between them reads as a difference."
        )
    latency, ratio = (f"{significant(100 * one.deviation, 2)} %" for one in (LATENCY_SCATTER, RATIO_SCATTER))
    return (
        "One sweep of each build: intervals rest on rounds (Welch) and on how much sweeps of one build are "
        f"taken to scatter, {latency} ({ratio} against {BASELINE}), as on the reference machine: yours may "
        "differ. Several sweeps of each, in turn, measure it instead."
    )


def percent(ratio: float) -> str:
    """A ratio as a signed change: +5.2 %, −1.0 %."""
    return f"{100 * (ratio - 1):+.1f} %".replace("-", "−").replace("+0.0", "0.0").replace("−0.0", "0.0")


def change(interval: Interval | None) -> str:
    """'+5.2 % [+3.1, +7.4]', or a dash."""
    if interval is None:
        return "–"
    low, high = (percent(end).removesuffix(" %") for end in (interval.low, interval.high))
    return f"{percent(interval.value)} [{low}, {high}]"


def _why(one: CellChange) -> str:
    """Where a cell's change went, largest first: 'dispatch +0.31 ms, kernel −0.05 ms'; parts are means.

    Of a part, at least a tenth of the change.
    """
    if one.word == NO_DIFFERENCE:
        return ""
    least = 0.1 * abs(one.after_seconds - one.before_seconds)
    known = {part: value for part, value in one.parts_change_seconds.items() if value}
    ranked = sorted(known.items(), key=lambda item: -abs(item[1]))
    shown = [
        f"{part.replace('_', ' ')} {'+' if value > 0 else '−'}{milliseconds(abs(value))}"
        for part, value in ranked
        if abs(value) >= least
    ]
    return listed(shown[:SHOWN])


def table(found: BuildComparison) -> Table:
    latency = found.before.sweeps[0].words.latency
    return Table("", [head.format(latency=latency) for head in HEADS], [_row(one) for one in found.cells])


def _row(one: CellChange) -> list[Text]:
    against = one.ratio_against_baseline
    return [
        Text(one.cell),
        Text(milliseconds(one.before_seconds)),
        Text(milliseconds(one.after_seconds)),
        Text(change(one.ratio), word=one.word),
        Text(change(against), word=one.word_against_baseline or ""),
        Text(percent(one.at_most)),
        Text(percent(one.smallest_detectable)),
        Text(_why(one)),
    ]


def markdown(found: BuildComparison) -> str:
    """The verdict, the table and the sentences, for a pull request."""
    listed_sentences = [f"- {sentence}" for sentence in sentences(found)]
    return "\n".join([f"**{headline(found)}**", "", as_markdown(table(found)), "", *listed_sentences, ""])


def print_comparison(found: BuildComparison, console: Console) -> None:
    console.print(Styled(headline(found), style="bold"), soft_wrap=True)
    print_table(table(found), console, LEFT_OUT)
    for sentence in sentences(found):
        console.print(Styled(sentence), soft_wrap=True)
