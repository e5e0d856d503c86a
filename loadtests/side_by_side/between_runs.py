"""Whether a mode in one run is faster than a mode in another, which was measured at another time.

An interval of one run describes the minutes of that run; sweeps of one build on one machine scatter by more.
So every difference between runs allows for that, by the rule of `launchbound compare` with one sweep each.
"""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.plan.cells import MINIMUM_ROUNDS
from loadtests.report import formatting
from loadtests.report.summaries import Summary
from loadtests.side_by_side.entry import Entry
from service.statistics.builds import LATENCY_SCATTER, difference, word_of
from service.statistics.choice import Rounds, Word, compare
from service.statistics.intervals import Interval

SCATTER_TEXT = f"{formatting.significant(100 * LATENCY_SCATTER.deviation, 2)} %"
"""How much sweeps of one build scatter: of the reference machine, as one run of each cannot show it."""


@dataclass(frozen=True, slots=True)
class Place:
    """One mode in one run; `rounds` are its median latencies by round, in seconds."""

    entry: Entry
    summary: Summary
    rounds: Rounds


def place_of(entry: Entry, summary: Summary) -> Place:
    """The mode of `summary` in the run `entry`."""
    return Place(entry, summary, entry.findings.results.medians(summary.cell.name))


def times_as_fast(base: Place, own: Place) -> Interval | None:
    """Latency of `base` over that of `own` in another run, the scatter allowed for; None below two rounds."""
    if fewest_rounds(base, own) < 2:
        return None
    return difference([list(own.rounds.values())], [list(base.rounds.values())], LATENCY_SCATTER).interval()


def word_between(base: Place, own: Place) -> Word:
    """How `own` compares with `base` of another run; `undecided` below 8 rounds."""
    if fewest_rounds(base, own) < MINIMUM_ROUNDS:
        return "undecided"
    sides = [list(base.rounds.values())], [list(own.rounds.values())]
    return word_of(difference(*sides, LATENCY_SCATTER).interval())


def told_apart(place: Place, fastest: Place) -> bool:
    """Whether `fastest` is faster: paired within a run, unpaired between two."""
    if place.entry is fastest.entry:
        confidence = place.entry.findings.confidence
        return compare(place.rounds, fastest.rounds, confidence).word == "faster"
    return word_between(place, fastest) == "faster"


def fewest_rounds(*places: Place) -> int:
    """Of the one that has least."""
    return min(len(place.rounds) for place in places)
