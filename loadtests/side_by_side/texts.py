"""How far a precision's texts are from those of the reference: greedy completions of the same prompts."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.plan.cells import BASELINE
from loadtests.run.rows import each_row
from loadtests.run.run_file import SweepRun
from loadtests.side_by_side.entry import Entry

Texts = dict[tuple[str, int, int], str]
"""By cell, round and index of the request, the digest of its completions' texts."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Of `requests` of the baseline that both runs have, those whose texts are all equal."""

    equal: int
    requests: int


def agreement(entry: Entry, reference: Entry) -> Agreement | None:
    """How often the baseline wrote the same in both runs.

    None where they were not sent the same prompts, or no request of one is in the other: prompts follow from
    seed, round and index alone.
    """
    runs = entry.findings.results.run, reference.findings.results.run
    if entry is reference or _prompts_of(runs[0]) != _prompts_of(runs[1]):
        return None
    own, others = _texts(entry), _texts(reference)
    shared = own.keys() & others.keys()
    return Agreement(sum(own[one] == others[one] for one in shared), len(shared)) if shared else None


def _prompts_of(run: SweepRun) -> tuple[int, object]:
    return run.seed, run.settings.get("prompt_file")


def _texts(entry: Entry) -> Texts:
    rows = each_row(entry.findings.results.folder)
    return {
        (row.cell, row.round, row.index): row.text_digest
        for row in rows
        if row.counts and row.mode == BASELINE and row.index is not None and row.text_digest is not None
    }
