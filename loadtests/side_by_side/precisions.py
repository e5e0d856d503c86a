"""What precision buys: the modes of runs that differ in it, as ratios between these runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadtests.compare.likeness import NEEDED
from loadtests.plan.cells import Group
from loadtests.plan.dtypes import REFERENCE
from loadtests.side_by_side.between_runs import Place, place_of, times_as_fast, told_apart, word_between
from loadtests.side_by_side.entry import Entry
from loadtests.side_by_side.texts import Agreement, agreement
from service.statistics.choice import Word
from service.statistics.intervals import Interval, unpaired_ratio

_ALIKE = ("model", *(fact for fact in NEEDED if fact not in ("dtype", "layout of linear weights")))
"""What such runs share. The layout is chosen by timing in each precision."""


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


def _bought(base: Place | None, own: Place | None) -> Bought | None:
    if base is None or own is None or base is own:
        return None
    word, speedup = word_between(base, own), times_as_fast(base, own)
    if speedup is None:
        return Bought(own, None, None, word)
    return Bought(own, speedup, unpaired_ratio(list(base.rounds.values()), list(own.rounds.values())), word)
