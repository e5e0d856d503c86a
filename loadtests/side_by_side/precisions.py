"""What precision buys: the modes of runs that differ in it, as ratios between these runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.compare.likeness import NEEDED
from loadtests.plan.cells import MINIMUM_ROUNDS, Group
from loadtests.plan.dtypes import REFERENCE
from loadtests.report.summaries import Summary
from loadtests.side_by_side.entry import Entry
from loadtests.side_by_side.texts import Agreement, agreement
from service.statistics.builds import LATENCY_SCATTER, difference, word_of
from service.statistics.choice import Rounds, Word, compare
from service.statistics.intervals import Interval, unpaired_ratio

_ALIKE = ("model", *(fact for fact in NEEDED if fact not in ("dtype", "layout of linear weights")))
"""What such runs share. The layout is chosen by timing in each precision."""


@dataclass(frozen=True, slots=True)
class Place:
    """One mode in one run; `rounds` are its median latencies by round, in seconds."""

    entry: Entry
    summary: Summary
    rounds: Rounds


@dataclass(frozen=True, slots=True)
class Bought:
    """A mode's speed-up over the same mode in the reference run: the reference's latency over its own.

    `speedup` allows for what sweeps of one build scatter, `over_rounds` does not; None below two rounds.
    """

    place: Place
    speedup: Interval | None
    over_rounds: Interval | None
    word: Word


@dataclass(frozen=True, slots=True)
class AtGroup:
    """One group of cells: what precision buys each mode, by mode and run, and the fastest of them all.

    `near` are the others that are not told apart from the fastest. None of `bought`: the run lacks the mode,
    or the reference does. `noise` is each run's ratio of the baseline to itself, measured twice.
    """

    group: Group
    bought: dict[str, list[Bought | None]]
    fastest: Place
    near: tuple[Place, ...]
    noise: list[Interval | None]


@dataclass(frozen=True, slots=True)
class Precisions:
    """Runs of several precisions beside `reference`: speeds by group, and by run how many texts are equal."""

    entries: tuple[Entry, ...]
    reference: Entry
    groups: tuple[AtGroup, ...]
    agreements: tuple[Agreement | None, ...]


def precisions_of(entries: Sequence[Entry], groups: Sequence[Group]) -> Precisions | None:
    """What precision buys at each of `groups`, which two runs or more have.

    None where precision does not differ, or where something else does that makes a difference of its own.
    """
    reference = reference_of(entries)
    if reference is None or not groups:
        return None
    return Precisions(
        entries=tuple(entries),
        reference=reference,
        groups=tuple(_at(entries, reference, group) for group in groups),
        agreements=tuple(agreement(entry, reference) for entry in entries),
    )


def reference_of(entries: Sequence[Entry]) -> Entry | None:
    """The run that others are compared with: float32's, else the first. None as `precisions_of`."""
    if len({entry.facts["dtype"] for entry in entries}) < 2:
        return None
    if any(len({entry.facts[fact] for entry in entries}) > 1 for fact in _ALIKE):
        return None
    return next((entry for entry in entries if entry.facts["dtype"] == REFERENCE), entries[0])


def _at(entries: Sequence[Entry], reference: Entry, group: Group) -> AtGroup:
    places = [_places(entry, group) for entry in entries]
    base = places[list(entries).index(reference)]
    modes = dict.fromkeys(mode for own in places for mode in own)
    everywhere = [place for own in places for place in own.values()]
    fastest = min(everywhere, key=lambda place: place.summary.latency.value)
    verdicts = [entry.verdict(group) for entry in entries]
    return AtGroup(
        group=group,
        bought={mode: [_bought(base.get(mode), own.get(mode)) for own in places] for mode in modes},
        fastest=fastest,
        near=tuple(place for place in everywhere if place is not fastest and not told_apart(place, fastest)),
        noise=[verdict.noise if verdict else None for verdict in verdicts],
    )


def _places(entry: Entry, group: Group) -> dict[str, Place]:
    verdict = entry.verdict(group)
    return {one.cell.mode: place_of(entry, one) for one in (verdict.candidates if verdict else [])}


def place_of(entry: Entry, summary: Summary) -> Place:
    """The mode of `summary` in the run `entry`."""
    return Place(entry, summary, entry.findings.results.medians(summary.cell.name))


def _bought(base: Place | None, own: Place | None) -> Bought | None:
    if base is None or own is None or base is own:
        return None
    word = _word(base, own)
    if _rounds(base, own) < 2:
        return Bought(own, None, None, word)
    before, after = list(base.rounds.values()), list(own.rounds.values())
    speedup = difference([after], [before], LATENCY_SCATTER).interval()
    return Bought(own, speedup, unpaired_ratio(before, after), word)


def _word(base: Place, own: Place) -> Word:
    """How `own` compares with `base` of another run; `undecided` below 8 rounds."""
    if _rounds(base, own) < MINIMUM_ROUNDS:
        return "undecided"
    sides = [list(base.rounds.values())], [list(own.rounds.values())]
    return word_of(difference(*sides, LATENCY_SCATTER).interval())


def told_apart(place: Place, fastest: Place) -> bool:
    """Whether `fastest` is faster: paired within a run, unpaired between two."""
    if place.entry is fastest.entry:
        confidence = place.entry.findings.confidence
        return compare(place.rounds, fastest.rounds, confidence).word == "faster"
    return _word(place, fastest) == "faster"


def _rounds(*places: Place) -> int:
    return min(len(place.rounds) for place in places)
