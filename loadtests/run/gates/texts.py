"""The gate of the texts: all modes complete the same prompts alike."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence

from loadtests.plan.cells import BASELINE
from loadtests.run.gates.gate import Gate, some
from loadtests.run.rows import RequestRow
from loadtests.run.run_file import SweepRun

NAME = "same texts in all modes"

_Prompts = tuple[int, str, int, int]
"""Batch size, prompt set, new tokens, round: within these the same index has the same prompts."""


class _VisitTexts:
    """The texts of one visit: `hashes` of their digests, and the index of each; 16 bytes per request."""

    __slots__ = ("cell", "hashes", "indexes", "mode")

    def __init__(self, cell: str, mode: str) -> None:
        self.cell = cell
        self.mode = mode
        self.indexes = array("q")
        self.hashes = array("q")


class Texts:
    """In every round all modes complete the same prompts with the same texts; in float32 they have to."""

    def __init__(self) -> None:
        self._visits: dict[_Prompts, dict[str, _VisitTexts]] = defaultdict(dict)

    def add(self, row: RequestRow) -> None:
        """Take in a row that counts."""
        if row.text_digest is None or row.index is None:
            return
        visits = self._visits[row.batch_size, row.prompt_set, row.new_tokens, row.round]
        visit = visits.get(row.cell)
        if visit is None:
            visit = visits[row.cell] = _VisitTexts(row.cell, row.mode)
        visit.indexes.append(row.index)
        # A digest is 64 bits of a hash itself: the hash of the string tells two apart as surely.
        visit.hashes.append(hash(row.text_digest))

    def gate(self, run: SweepRun) -> Gate:
        """How many sets of prompts have one text, and the cells that differ in the others."""
        sets, wrong, odd = 0, 0, Counter[str]()
        for visits in self._visits.values():
            for alike in _same_prompts(list(visits.values())):
                cells = _odd_ones(alike)
                sets, wrong = sets + 1, wrong + bool(cells)
                odd.update(cells)
        if not sets:
            return Gate(name=NAME, passed=None, detail="no prompts with texts of two modes")
        detail = f"{sets - wrong} of {sets} sets of prompts"
        if wrong:
            detail += f"; different: {some([f'{cell} ({count} ×)' for cell, count in odd.most_common()])}"
        warning = run.engine.get("dtype") != "float32"
        return Gate(name=NAME, passed=not wrong, detail=detail, warning=warning)


def _same_prompts(visits: Sequence[_VisitTexts]) -> list[list[tuple[_VisitTexts, int]]]:
    """Of one round, the requests with the same prompts: visit and hash of each; only where there are two."""
    sets: dict[int, list[tuple[_VisitTexts, int]]] = defaultdict(list)
    for visit in visits:
        for index, text in zip(visit.indexes, visit.hashes, strict=True):
            sets[index].append((visit, text))
    return [alike for alike in sets.values() if len(alike) > 1]


def _odd_ones(alike: Sequence[tuple[_VisitTexts, int]]) -> list[str]:
    """The cells whose texts are not the baseline's or, without it, those of most."""
    first = alike[0][1]
    if all(text == first for _, text in alike):
        return []
    usual = Counter(text for _, text in alike).most_common(1)[0][0]
    reference = next((text for visit, text in alike if visit.mode == BASELINE), usual)
    return [visit.cell for visit, text in alike if text != reference]
