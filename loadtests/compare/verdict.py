"""Two builds compared: all cells at one confidence, and whether the new one is slower than allowed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from loadtests.compare.cells import CellChange, matched
from loadtests.compare.likeness import SAID, Contrast, Unlike, checked, contrasts
from loadtests.compare.side import Side, read_side, swept_in_turn
from service.statistics.builds import Scatter, Unit, confidence_of_each, word_of
from service.statistics.choice import Word
from service.statistics.intervals import Interval

Decision = Literal["not slower", "slower", "undecided"]

EXIT_CODES: dict[Decision | None, int] = {None: 0, "not slower": 0, "slower": 1, "undecided": 3}
"""Of the command, by the decision; None: none was asked for. 2 is bad input, as everywhere."""


@dataclass(frozen=True)
class BuildComparison:
    """`after` against `before`. `allowed` is the slow-down, as a share, that is still accepted."""

    before: Side
    after: Side
    changes: tuple[CellChange, ...]
    left_out: dict[str, str]
    forced: list[Contrast]
    said: list[Contrast]
    stated: Scatter | None
    allowed: float | None

    @property
    def confidence(self) -> float:
        """Of each interval, so that all of them hold together in 95 %."""
        return confidence_of_each(len(self.changes))

    @property
    def unit(self) -> Unit:
        """What the intervals rest on, the same in all cells."""
        return self.changes[0].latency.unit

    @property
    def in_turn(self) -> bool:
        """Whether the two builds were swept in turn."""
        return swept_in_turn(self.before, self.after)

    def change(self, one: CellChange) -> Interval:
        """Latency after over before."""
        return one.latency.interval(self.confidence)

    def relative(self, one: CellChange) -> Interval | None:
        """The same of the mode's latency over the baseline's of its own sweep."""
        return None if one.relative is None else one.relative.interval(self.confidence)

    def word(self, one: CellChange) -> Word:
        """`slower`, `faster` or `no detectable difference`, of the latency."""
        return word_of(self.change(one))

    def relative_word(self, one: CellChange) -> Word | None:
        """The same against the baseline; None for the baseline."""
        relative = self.relative(one)
        return None if relative is None else word_of(relative)

    def with_word(self, word: Word) -> list[CellChange]:
        """The cells of this verdict."""
        return [one for one in self.changes if self.word(one) == word]

    @cached_property
    def decision(self) -> Decision | None:
        """Whether `after` is slower by more than `allowed`; None where nothing was asked.

        `slower`: of some cell the whole interval lies above it. `not slower`: of every cell the one-sided
        95 % bound lies within it, which needs no correction for many cells, because all have to pass (Berger
        1982, Technometrics 24). `undecided`: neither.
        """
        if self.allowed is None:
            return None
        most = 1 + self.allowed
        if any(self.change(one).low > most for one in self.changes):
            return "slower"
        if all(one.latency.at_most() <= most for one in self.changes):
            return "not slower"
        return "undecided"

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return EXIT_CODES[self.decision]


def compare_builds(
    before: Path | str,
    after: Path | str,
    *,
    allowed: float | None = None,
    scatter: float | None = None,
    force: bool = False,
) -> BuildComparison:
    """Compare the sweep or sweeps in `after` with those in `before`.

    `allowed` is a slow-down as a share (0.05: 5 %). `scatter`, a share too, replaces the project's own figure
    for how much sweeps of one build scatter, which counts only with one sweep on each side. Raises RowsError
    for a folder that cannot be read or has no cell in common with the other, and Unlike, one of them, for
    sweeps that are not alike, unless `force`.
    """
    sides = read_side(Path(before)), read_side(Path(after))
    if twice := {s.folder.resolve() for s in sides[0].sweeps} & {s.folder.resolve() for s in sides[1].sweeps}:
        raise Unlike(f"{min(twice)} stands on both sides: name another sweep, of the same build or another")
    forced = checked(*sides, force)
    stated = None if scatter is None else Scatter(scatter)
    found = matched(*sides, stated)
    if not found.changes:
        reasons = "; ".join(f"{name}: {why}" for name, why in found.left_out.items())
        raise Unlike(
            f"{before} and {after} have no closed-loop cell to compare ({reasons or 'none measured'}): "
            "sweep both with one plan"
        )
    runs = [sweep.run for side in sides for sweep in side.sweeps]
    said = contrasts(runs, SAID)
    return BuildComparison(*sides, found.changes, found.left_out, forced, said, stated, allowed)
