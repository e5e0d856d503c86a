"""Sweeps of one build on one machine: whether their answers agree, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtests.plan.cells import BASELINE, Group
from loadtests.report.phases import Phase
from loadtests.report.summaries import Verdict
from loadtests.report.wording import tied_with
from loadtests.side_by_side.entry import Entry, differing
from service.statistics.choice import paired
from service.statistics.intervals import Interval, mean_interval
from service.statistics.repeats import OverSweeps, most_named, over_sweeps, replicates


@dataclass(frozen=True, slots=True)
class RepeatedGroup:
    """One group of cells that all sweeps have; lists are by sweep, in their order.

    `answers` are the modes that tie, the one to ship first; empty where too few rounds decide nothing.
    `named` is in `naming` of them, most of all. `gains` are speed-ups over the baseline by mode,
    `over_named` those over the named mode, of the others that some answer names; of modes that all sweeps
    measured. `index` is the mean of the sweeps' kernel shares of the baseline's decode, with Student's
    t interval over sweeps; None where one has none.
    """

    verdicts: tuple[Verdict, ...]
    answers: tuple[tuple[str, ...], ...]
    named: str | None
    naming: int
    gains: Mapping[str, OverSweeps]
    over_named: Mapping[str, OverSweeps]
    index: Interval | None

    @property
    def group(self) -> Group:
        """Batch size and conditions."""
        return self.verdicts[0].group

    @property
    def replicates(self) -> bool:
        """Whether at least four of five sweeps name one mode, tied or alone."""
        return replicates(self.naming, len(self.answers))

    @property
    def decodes(self) -> list[Phase]:
        """The baseline's decode."""
        return [verdict.baseline.decode for verdict in self.verdicts]


@dataclass(frozen=True, slots=True)
class Repeats:
    """Two sweeps or more of one build on one machine."""

    entries: tuple[Entry, ...]
    groups: tuple[RepeatedGroup, ...]


def repeats_of(entries: Sequence[Entry], groups: Sequence[Group]) -> Repeats | None:
    """What `entries` say together in those of `groups` that all of them have.

    None where they differ in anything that tells builds and machines apart, or are fewer than two, or have no
    such group.
    """
    if len(entries) < 2 or differing(entries):
        return None
    found = []
    for group in groups:
        verdicts = [verdict for entry in entries if (verdict := entry.verdict(group))]
        if len(verdicts) == len(entries):
            found.append(_repeated(entries, verdicts))
    return Repeats(tuple(entries), tuple(found)) if found else None


def _repeated(entries: Sequence[Entry], verdicts: Sequence[Verdict]) -> RepeatedGroup:
    answers = tuple(_answer(verdict) for verdict in verdicts)
    named, naming = most_named(answers)
    modes = [summary.cell.mode for summary in verdicts[0].candidates]
    others = [mode for mode in modes if any(mode in answer for answer in answers)]
    over_named = _gains(named, others, entries, verdicts) if named is not None else {}
    indices = [one for verdict in verdicts if (one := verdict.baseline.decode.index) is not None]
    index = mean_interval(indices) if len(indices) == len(verdicts) else None
    gains = _gains(BASELINE, modes, entries, verdicts)
    return RepeatedGroup(tuple(verdicts), answers, named, naming, gains, over_named, index)


def _answer(verdict: Verdict) -> tuple[str, ...]:
    return () if verdict.choice is None else (verdict.choice.ship, *tied_with(verdict))


def _gains(
    reference: str, modes: Sequence[str], entries: Sequence[Entry], verdicts: Sequence[Verdict]
) -> dict[str, OverSweeps]:
    """Latency of `reference` over that of each of `modes`, paired by round within each sweep."""
    found = {}
    for mode in modes:
        sweeps = [_ratios(reference, mode, *sweep) for sweep in zip(entries, verdicts, strict=True)]
        if mode != reference and all(sweeps):
            found[mode] = over_sweeps(sweeps)
    return found


def _ratios(reference: str, mode: str, entry: Entry, verdict: Verdict) -> list[float]:
    """One per round that has both; none where the sweep lacks one of them."""
    cells = {one.cell.mode: one.cell.name for one in verdict.candidates}
    if reference not in cells or mode not in cells:
        return []
    medians = (entry.findings.results.medians(cells[one]) for one in (reference, mode))
    return [base / own for base, own in zip(*paired(*medians), strict=True)]
