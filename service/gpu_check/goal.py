"""One line of the last table: what was found, what was wanted, and a verdict that only rows can give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.gpu_check.rows import Row

BySection = Mapping[str, list[Row]]
Verdict = Literal["met", "missed", "undecided", "unknown"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A line of the last table. `decides`: the exit code hangs on it; goals of speed only inform.

    A deciding goal holds only where it is `met`: unknown and undecided are no success.
    """

    name: str
    found: str
    goal: str
    verdict: Verdict
    decides: bool = True

    @property
    def holds(self) -> bool:
        """Whether the exit code may be 0 in spite of it."""
        return self.verdict == "met" or not self.decides


def rows_of(rows: BySection, section: str, kind: str) -> list[Row]:
    """The rows of one kind that a section wrote; empty where it wrote none."""
    return [row for row in rows.get(section, []) if row["kind"] == kind]


def judged(holds: bool) -> Verdict:
    """The verdict on what was measured."""
    return "met" if holds else "missed"
