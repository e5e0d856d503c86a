"""Which mode to ship, whether two builds differ in speed, and when a sweep may stop: comparisons over rounds.

Rounds are the unit of replication within a sweep, sweeps are between builds: sweeps of one build scatter by
more than the interval of one sweep says. Imports nothing of ours but the other statistics.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Literal, TypeVar

from scipy.special import nctdtrinc

from service.statistics.intervals import (
    Interval,
    exp,
    exponential,
    mean_interval,
    paired_ratio,
    t_quantile,
    welch,
)

CONFIDENCE = 0.95
"""Of all answers of a sweep together, over its interim checks and batch sizes; of each interval by itself."""

CHECKS = 3
"""A sweep has so many interim checks at most, and stops at the first that decides."""


def interim_checks(least: int, most: int) -> tuple[int, ...]:
    """After how many rounds a sweep of `least` to `most` rounds checks whether it may stop.

    Up to CHECKS round counts, evenly spaced, `least` the first and `most` the last.
    """
    count = min(CHECKS, most - least + 1)
    if count <= 1:
        return (least,)
    return tuple(least + (most - least) * number // (count - 1) for number in range(count))


def confidence_of(checks: int) -> float:
    """The confidence of each interval among `checks` of them that must hold together: 1 − 0.05 / checks.

    Bonferroni: whoever stops at the first of several interim checks that shows a difference is wrong in at
    most the sum of their error rates, 5 %. `choose_each` steps down from it.
    """
    return 1 - (1 - CONFIDENCE) / max(1, checks)


Word = Literal["faster", "slower", "no detectable difference", "undecided"]
Rounds = Mapping[int, float]
"""By round, the median latency of a mode's requests in it, in seconds."""

MINIMUM_ROUNDS = 8
"""A comparison over fewer rounds is called undecided."""

BASELINE = "inference_mode"
"""What an answer is against: the best mode without a compiler, which is what people ship."""

MARGIN = 1.05
"""Modes whose whole interval lies within this factor are equivalent: the simplest of them is shipped."""

Key = TypeVar("Key")

EQUIVALENT = 1.02
"""Two modes whose whole interval lies within this factor are called equal."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speed-up of one mode over another (baseline / candidate), and its verdict."""

    speedup: Interval
    word: Word

    @property
    def equivalent(self) -> bool:
        return _within(self.speedup, EQUIVALENT)


State = Literal["faster", "equivalent", "not resolved"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The mode to ship, and what the rounds say of it.

    `state` is `faster`: it is faster than `baseline`, and every simpler mode is slower than the fastest, or
    equivalent to that and not shown to beat the baseline; `equivalent`: no mode is faster than the baseline
    by more than MARGIN, so the baseline is shipped; `not resolved`: one of `unresolved` may be the right
    one, and about `rounds_needed` rounds would tell. `alike` are the modes whose whole interval against the
    fastest lies within MARGIN.
    """

    ship: str
    fastest: str
    baseline: str
    state: State
    alike: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    rounds_needed: int | None = None

    @property
    def beats_baseline(self) -> bool:
        """Whether the mode to ship is faster than the baseline, be it the right one or not."""
        return self.ship != self.baseline and self.baseline not in self.unresolved


def paired(first: Rounds, second: Rounds) -> tuple[list[float], list[float]]:
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
    return Comparison(speedup, _word(speedup, above="faster", below="slower"))


def choose(by_mode: Mapping[str, Rounds], confidence: float = CONFIDENCE) -> Choice | None:
    """Which mode to ship; `by_mode` in the order of the ladder, the simplest first.

    Over the rounds that all modes have: the fastest has the smallest mean log latency. Of it and the modes
    that are equivalent to it, the simplest is shipped that is the baseline or faster than the baseline. A
    mode that is neither equivalent nor slower is never shipped for being simple, so that noise earns no
    simpler answer: the answer is not resolved. None below 8 rounds, which decide nothing.

    With k modes each of the k − 1 comparisons is at 1 − (1 − confidence) / (k − 1): any of them may be the
    one that is wrong, the choice of the fastest included (Hsu, Multiple Comparisons, 1996, chapter 4).
    """
    rounds = _in_common(by_mode)
    count = len(next(iter(rounds.values())))
    baseline, fastest = baseline_of(rounds), by_speed(rounds)[0]
    if len(rounds) > 1 and count < MINIMUM_ROUNDS:
        return None
    each = 1 - (1 - confidence) / max(1, len(rounds) - 1)

    def over(mode: str, other: str) -> Interval:
        return paired_ratio(*paired(rounds[mode], rounds[other]), each)

    order = [baseline, *(mode for mode in rounds if mode != baseline)]
    alike = [mode for mode in order if mode == fastest or _within(over(mode, fastest), MARGIN)]
    ship = next(m for m in alike if m in (baseline, fastest) or over(baseline, m).low > 1)
    needed: dict[str, int] = {}
    for place, mode in enumerate(order):
        if mode == ship or (mode in alike and ship != baseline):
            continue
        simpler = place < order.index(ship)
        if simpler and (ratio := over(mode, fastest)).low <= 1:
            needed[mode] = _rounds_to_resolve(ratio, count, abs(math.log(ratio.value)))
        elif (ratio := over(ship, mode)).high > MARGIN:
            needed[mode] = _rounds_to_resolve(ratio, count, 0.0)
    return Choice(
        ship=ship,
        fastest=fastest,
        baseline=baseline,
        state="not resolved" if needed else "equivalent" if ship == baseline else "faster",
        alike=tuple(mode for mode in alike if mode != fastest),
        unresolved=tuple(needed),
        rounds_needed=max(needed.values(), default=None),
    )


def choose_each(groups: Mapping[Key, Mapping[str, Rounds]], checks: int = 1) -> dict[Key, Choice | None]:
    """`choose` for each group, with an error of 5 % over all of them and over `checks` interim checks.

    Bonferroni: each at a confidence of 1 − 0.05 / (checks · groups). Not Holm, whose error holds for answers
    of two kinds, a rejection or none; of these three kinds two are claims.
    """
    confidence = confidence_of(checks * len(groups))
    return {key: choose(by_mode, confidence) for key, by_mode in groups.items()}


def baseline_of(modes: Iterable[str]) -> str:
    """What a better mode has to beat: `inference_mode`, the best without a compiler; else the first."""
    known = list(modes)
    return BASELINE if BASELINE in known else known[0]


def _within(ratio: Interval, margin: float) -> bool:
    return ratio.low >= 1 / margin and ratio.high <= margin


def _rounds_to_resolve(ratio: Interval, rounds: int, apart: float) -> int:
    """About how many rounds tell, were the ratio what it is now: equivalent, or by the distance `apart`.

    The half width of the interval falls with √rounds, below the distance from 1, or to within the margin.
    """
    half = math.log(ratio.high / ratio.low) / 2
    needed = max(apart, math.log(MARGIN) - abs(math.log(ratio.value)))
    return max(rounds + 1, math.ceil(rounds * (half / needed) ** 2)) if needed > 0 else rounds + 1


def by_speed(by_mode: Mapping[str, Rounds]) -> list[str]:
    """The modes by mean log latency, the fastest first; of equal ones, the simpler first."""
    return sorted(by_mode, key=lambda mode: _mean_log(by_mode[mode]))


def _in_common(by_mode: Mapping[str, Rounds]) -> dict[str, Rounds]:
    shared = set.intersection(*(set(rounds) for rounds in by_mode.values()))
    return {mode: {number: rounds[number] for number in sorted(shared)} for mode, rounds in by_mode.items()}


def _mean_log(rounds: Rounds) -> float:
    return math.fsum(map(math.log, rounds.values())) / len(rounds) if rounds else math.inf


Unit = Literal["pairs of sweeps", "sweeps", "rounds"]
Sweeps = Sequence[Sequence[float]]
"""Per sweep of a build, one positive value per round: a cell's median latency, or a ratio of two cells."""

POWER = 0.8
"""The chance with which a difference of the smallest detectable size is found."""

LEAST_SWEEPS = 3
"""So many sweeps of both builds together say how much sweeps of one build scatter."""


@dataclass(frozen=True, slots=True)
class Scatter:
    """How much sweeps of one build scatter beyond their rounds.

    `deviation` is the standard deviation of a cell's mean logarithm, known with `freedom` degrees of freedom;
    infinite: it is stated, not estimated.
    """

    deviation: float
    freedom: float = math.inf


LATENCY_SCATTER = Scatter(0.082, 4)
"""Of latencies: five sweeps of one build, pooled (benchmarks/20261122-epyc2-30a3a3a9-five-sweeps)."""

RATIO_SCATTER = Scatter(0.028, 4)
"""Of a mode's latency over the baseline's of its own sweep, from the same five."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of logarithms, candidate less baseline, with its standard error.

    The error follows Student's t with `freedom` degrees of freedom; `samples` counts the units of the smaller
    side.
    """

    log_ratio: float
    error: float
    freedom: float
    unit: Unit
    samples: int

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Candidate / baseline with its two-sided interval; above 1 the candidate takes longer."""
        half = t_quantile(self.freedom, 0.5 + confidence / 2) * self.error
        ratio = self.log_ratio
        return exponential(Interval(ratio, ratio - half, ratio + half, self.samples))

    def at_most(self) -> float:
        """The upper end of the one-sided interval of candidate / baseline."""
        return exp(self.log_ratio + t_quantile(self.freedom, CONFIDENCE) * self.error)

    def smallest_detectable(self, confidence: float = CONFIDENCE) -> float:
        """The least slow-down, as a ratio, that intervals of this width exclude 1 for in 80 % of comparisons.

        exp(δ · error), with δ the noncentrality at which Student's t exceeds its critical value in 80 %. It
        depends on the scatter that was seen, not on the difference.
        """
        critical = t_quantile(self.freedom, 0.5 + confidence / 2)
        if math.isinf(self.freedom):
            return exp((critical + t_quantile(self.freedom, POWER)) * self.error)
        return exp(float(nctdtrinc(self.freedom, 1 - POWER, critical)) * self.error)


def difference(baseline: Sweeps, candidate: Sweeps, scatter: Scatter, in_turn: bool = False) -> Difference:
    """The difference of two builds in one cell. A sweep's value is the mean logarithm over its rounds.

    `in_turn`: the builds were swept in turn, each sweep of one beside its namesake of the other: with two
    pairs or more, Student's t on the differences of pairs. Else, with three sweeps or more in all, the
    two-sample t with the variance of sweeps pooled over both builds, so that a single new sweep can be
    compared with several old ones. Else, with one sweep each, Welch's t over rounds, to whose variance that
    of `scatter` is added twice, with Satterthwaite's degrees of freedom.

    Raises ValueError for pairs that do not match, a build without sweeps, or below two rounds where rounds
    are the unit.
    """
    sides = [[[math.log(value) for value in rounds] for rounds in side] for side in (baseline, candidate)]
    means = [[fmean(rounds) for rounds in side] for side in sides]
    if not all(means):
        raise ValueError("a comparison needs at least one sweep of either build")
    if in_turn and len(means[0]) != len(means[1]):
        raise ValueError("builds that were swept in turn have equally many sweeps")
    if in_turn and len(means[0]) > 1:
        return _of_pairs(*means)
    if sum(map(len, means)) >= LEAST_SWEEPS:
        return _of_sweeps(*means)
    return _of_rounds(sides[0][0], sides[1][0], scatter)


def word_of(change: Interval) -> Word:
    """`slower` or `faster` where the interval of candidate / baseline excludes 1 and reaches beyond 2 %."""
    return _word(change, above="slower", below="faster")


def _word(ratio: Interval, above: Word, below: Word) -> Word:
    if _within(ratio, EQUIVALENT) or not ratio.excludes_one:
        return "no detectable difference"
    return above if ratio.value > 1 else below


@dataclass(frozen=True, slots=True)
class OverSweeps:
    """A ratio over several sweeps: their geometric mean, with Student's t interval over them.

    `deviation` is the standard deviation of the sweeps' mean logarithms; 0.04 is about 4 %.
    """

    ratio: Interval
    deviation: float


def over_sweeps(sweeps: Sweeps) -> OverSweeps:
    """What `sweeps`, each the ratios of its rounds, say together. Raises ValueError below two sweeps."""
    if len(sweeps) < 2:
        raise ValueError("what sweeps say together needs two of them")
    means = [fmean(map(math.log, rounds)) for rounds in sweeps]
    return OverSweeps(exponential(mean_interval(means)), stdev(means))


def most_named(answers: Sequence[str | None]) -> tuple[str | None, int]:
    """The mode that most of the sweeps' `answers` are, and how many; None where no answer is resolved.

    Of several modes in equally many answers it is the one that is named first.
    """
    counts = Counter(answer for answer in answers if answer is not None)
    return counts.most_common(1)[0] if counts else (None, 0)


def replicates(named: int, sweeps: int) -> bool:
    """Whether an answer that `named` of the `sweeps` give replicates: at least four of five do."""
    return sweeps > 1 and 5 * named >= 4 * sweeps


def _of_pairs(baseline: Sequence[float], candidate: Sequence[float]) -> Difference:
    gaps = [after - before for before, after in zip(baseline, candidate, strict=True)]
    count = len(gaps)
    return Difference(fmean(gaps), stdev(gaps) / math.sqrt(count), count - 1, "pairs of sweeps", count)


def _of_sweeps(baseline: Sequence[float], candidate: Sequence[float]) -> Difference:
    sides = (baseline, candidate)
    freedom = sum(len(side) - 1 for side in sides)
    pooled = sum((len(side) - 1) * variance(side) for side in sides if len(side) > 1) / freedom
    error = math.sqrt(pooled * sum(1 / len(side) for side in sides))
    return Difference(fmean(candidate) - fmean(baseline), error, freedom, "sweeps", min(map(len, sides)))


def _of_rounds(baseline: Sequence[float], candidate: Sequence[float], scatter: Scatter) -> Difference:
    sides = (baseline, candidate)
    smaller = min(map(len, sides))
    if smaller < 2:
        raise ValueError("a comparison over rounds needs at least two rounds of either build")
    parts = [(variance(side) / len(side), len(side) - 1.0) for side in sides]
    error, freedom = welch([*parts, (2 * scatter.deviation**2, scatter.freedom)])
    return Difference(fmean(candidate) - fmean(baseline), error, freedom, "rounds", smaller)


STEPS_PER_SWITCH = 20
"""Steps in which one involuntary context switch is still accepted."""


def is_disturbed(involuntary_switches: float, steps: float) -> bool:
    """Whether the measuring thread lost its core more than once per 20 steps; counts, or means of both."""
    return involuntary_switches * STEPS_PER_SWITCH > steps
