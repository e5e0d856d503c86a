"""Which mode to ship: paired comparisons of modes over rounds, and the choice between them.

Rounds are the unit of replication. Imports nothing else of ours; sweep, report, advice and compare use it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from service.statistics.intervals import Interval, paired_ratio
from service.statistics.looks import CONFIDENCE

Word = Literal["faster", "slower", "no detectable difference", "undecided"]
Rounds = Mapping[int, float]
"""By round, the median latency of a mode's requests in it, in seconds."""

MINIMUM_ROUNDS = 8
"""A comparison over fewer rounds is called undecided."""

EQUIVALENT = 1.02
"""Two modes whose whole interval lies within this factor are called equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speed-up of one mode over another (baseline / candidate), and its verdict."""

    speedup: Interval
    word: Word

    @property
    def equivalent(self) -> bool:
        """Whether the whole interval lies within 2 % of 1: equal for every practical purpose."""
        return self.speedup.low >= 1 / EQUIVALENT and self.speedup.high <= EQUIVALENT

    @property
    def settled(self) -> bool:
        """Whether more rounds have nothing to add: told apart, or equal within 2 %."""
        return self.word in ("faster", "slower") or (self.word != "undecided" and self.equivalent)


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode to ship, the fastest one, and the others that are tied with the fastest.

    `given_up` is the speed-up of the fastest over the one to ship, with its interval; None: they are one.
    `at_most` is the highest end of any interval between the one to ship and a mode that it is tied with, at
    least 1: by that factor one of them may be faster. None without a tie.
    """

    ship: str
    fastest: str
    tied: tuple[str, ...]
    given_up: Interval | None
    at_most: float | None = None


def paired(first: Rounds, second: Rounds) -> tuple[list[float], list[float]]:
    """The values of the rounds that both have, round by round."""
    shared = sorted(first.keys() & second.keys())
    return [first[number] for number in shared], [second[number] for number in shared]


def compare(baseline: Rounds, candidate: Rounds, confidence: float = CONFIDENCE) -> Comparison:
    """The speed-up baseline / candidate, with its verdict.

    With b and c the medians of one round, d = ln(b / c) per shared round: the speed-up is exp(mean d), its
    interval exp(mean d ± t(n - 1) · s / √n). The word is `undecided` below 8 shared rounds, `faster` or
    `slower` where the interval lies above or below 1, and `no detectable difference` where it includes 1 or
    lies within 2 % of it. Raises ValueError without a shared round.
    """
    speedup = paired_ratio(*paired(baseline, candidate), confidence)
    if speedup.samples < MINIMUM_ROUNDS:
        return Comparison(speedup, "undecided")
    told_apart = Comparison(speedup, "faster" if speedup.value > 1 else "slower")
    if told_apart.equivalent or not speedup.excludes_one:
        return Comparison(speedup, "no detectable difference")
    return told_apart


def choose(by_mode: Mapping[str, Rounds], confidence: float = CONFIDENCE) -> Choice | None:
    """Which mode to ship; `by_mode` in the order of the ladder, the simplest, the baseline, first.

    Over the rounds that all modes have: the fastest has the smallest mean log latency. A mode is tied with it
    if their own paired interval includes 1 or lies within 2 %. The simplest of fastest and tied is shipped,
    provided that it is the baseline or faster than the baseline. None below 8 rounds, which decide nothing.
    """
    rounds = _in_common(by_mode)
    if len(next(iter(rounds.values()))) < MINIMUM_ROUNDS:
        return None
    baseline, fastest = next(iter(rounds)), by_speed(rounds)[0]
    against = {mode: compare(own, rounds[fastest], confidence) for mode, own in rounds.items()}
    alike = [mode for mode in rounds if against[mode].word != "faster"]
    ship = next(
        mode
        for mode in alike
        if mode in (baseline, fastest) or compare(rounds[baseline], rounds[mode], confidence).word == "faster"
    )
    ends = [compare(rounds[ship], rounds[mode], confidence).speedup.high for mode in alike if mode != ship]
    return Choice(
        ship=ship,
        fastest=fastest,
        tied=tuple(mode for mode in alike if mode != fastest),
        given_up=None if ship == fastest else against[ship].speedup,
        at_most=max([1.0, *ends]) if ends else None,
    )


def decided(by_mode: Mapping[str, Rounds], confidence: float = CONFIDENCE) -> bool:
    """Whether more rounds would not change the choice: the fastest is settled against every other mode.

    Settled: told apart, or equal within 2 %. The second fastest is the hard one; where the two are equal, a
    simpler third mode near them decides what is shipped. One mode alone is decided.
    """
    rounds = _in_common(by_mode)
    fastest, *others = by_speed(rounds)
    return all(rounds[mode] and compare(rounds[mode], rounds[fastest], confidence).settled for mode in others)


def by_speed(by_mode: Mapping[str, Rounds]) -> list[str]:
    """The modes by mean log latency, the fastest first; of equal ones, the simpler first."""
    return sorted(by_mode, key=lambda mode: _mean_log(by_mode[mode]))


def _in_common(by_mode: Mapping[str, Rounds]) -> dict[str, Rounds]:
    """`by_mode` cut to the rounds that every mode has, so that all comparisons are over the same ones."""
    shared = set.intersection(*(set(rounds) for rounds in by_mode.values()))
    return {mode: {number: rounds[number] for number in sorted(shared)} for mode, rounds in by_mode.items()}


def _mean_log(rounds: Rounds) -> float:
    return math.fsum(map(math.log, rounds.values())) / len(rounds) if rounds else math.inf
