"""One run of the picture: its letter, what sets it apart from the others, and its findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboards.theme import PALETTE
from loadtests.compare.likeness import NEEDED, SAID, UNKNOWN
from loadtests.report.results import Results, read_results
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import Findings
from loadtests.run.rows import RowsError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

FACTS = {"model": lambda run: run.engine.get("model"), **NEEDED, **SAID}
"""Of a run, in the order of the table."""

NAMING = (
    "model", "dtype", "device", "the service's processor", "threads", "torch", "commit", "context",
    "layout of linear weights", "batching",
)  # fmt: skip
"""Which of them name a run, the first that tell runs apart."""


@dataclass(frozen=True)
class Entry:
    """A run; `facts` are all of FACTS as text, `label` names it by those in which the runs differ."""

    letter: str
    label: str
    colour: str
    facts: dict[str, str]
    findings: Findings

    @property
    def name(self) -> str:
        """'A (bfloat16)'."""
        return f"{self.letter} ({self.label})"

    @property
    def valid(self) -> bool:
        """Whether all its gates passed."""
        return not self.findings.results.failed_gates

    def verdict(self, group: object) -> Verdict | None:
        """Its answer for a group of cells; None where it has none."""
        return next((one for one in self.findings.verdicts if one.group == group), None)


def best(verdict: Verdict) -> Summary:
    """The mode to ship, or the fastest where too few rounds decide nothing."""
    return verdict.shipped or min(verdict.candidates, key=lambda one: one.latency.value)


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """The runs in `folders`, lettered in this order.

    Raises RowsError for a folder that cannot be read or is named twice, and above 26 of them.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise RowsError("a folder is named twice: name each run once")
    if len(folders) > len(LETTERS):
        raise RowsError(f"{len(folders)} runs: one picture takes {len(LETTERS)}, name fewer")
    return entries_of([read_results(folder) for folder in folders])


def entries_of(results: Sequence[Results], labels: Sequence[str] | None = None) -> list[Entry]:
    """The runs of `results`, at most 26, lettered in this order; called `labels` where they are given."""
    found = [Findings(one) for one in results]
    facts = [_facts(one) for one in found]
    naming = _naming(facts)
    return [
        Entry(
            letter=LETTERS[place],
            label=labels[place]
            if labels is not None
            else ", ".join(own[fact] for fact in naming) or one.results.folder.name,
            colour=PALETTE[place % len(PALETTE)],
            facts=own,
            findings=one,
        )
        for place, (one, own) in enumerate(zip(found, facts, strict=True))
    ]


def differing(entries: Sequence[Entry]) -> list[str]:
    """The facts in which the runs differ."""
    return [fact for fact in FACTS if len({entry.facts[fact] for entry in entries}) > 1]


def _facts(findings: Findings) -> dict[str, str]:
    run = findings.results.run
    return {fact: UNKNOWN if (v := read(run)) is None else str(v) for fact, read in FACTS.items()}


def _naming(facts: Sequence[dict[str, str]]) -> list[str]:
    """As few of NAMING as tell the runs apart, as far as they do."""
    chosen: list[str] = []
    for fact in NAMING:
        if _apart(facts, [*chosen, fact]) > max(1, _apart(facts, chosen)):
            chosen.append(fact)
    return chosen


def _apart(facts: Sequence[dict[str, str]], names: Sequence[str]) -> int:
    return len({tuple(one[name] for name in names) for one in facts})
