"""Whether two builds differ in speed, and what sweeps of one build say together.

Imports nothing of ours but the other statistics.

One sweep is some minutes of one machine, and minutes differ: sweeps of one build scatter by more than the
interval of one sweep says. So sweeps are the unit of replication wherever there are enough of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Literal

from scipy.special import nctdtrinc, ndtri, stdtrit

from service.statistics.choice import EQUIVALENT, Word
from service.statistics.intervals import Interval, mean_interval
from service.statistics.looks import CONFIDENCE

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
        half = self._quantile(0.5 + confidence / 2) * self.error
        ends = (_exp(self.log_ratio - half), _exp(self.log_ratio + half))
        return Interval(_exp(self.log_ratio), *ends, self.samples)

    def at_most(self, confidence: float = CONFIDENCE) -> float:
        """The upper end of the one-sided interval of candidate / baseline."""
        return _exp(self.log_ratio + self._quantile(confidence) * self.error)

    def smallest_detectable(self, confidence: float = CONFIDENCE) -> float:
        """The least slow-down, as a ratio, that intervals of this width exclude 1 for in 80 % of comparisons.

        exp(δ · error), with δ the noncentrality at which Student's t exceeds its critical value in 80 %. It
        depends on the scatter that was seen, not on the difference.
        """
        critical = self._quantile(0.5 + confidence / 2)
        if math.isinf(self.freedom):
            return _exp((critical + self._quantile(POWER)) * self.error)
        return _exp(float(nctdtrinc(self.freedom, 1 - POWER, critical)) * self.error)

    def _quantile(self, probability: float) -> float:
        return _quantile(self.freedom, probability)


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
    within = change.low >= 1 / EQUIVALENT and change.high <= EQUIVALENT
    if within or not change.excludes_one:
        return "no detectable difference"
    return "slower" if change.value > 1 else "faster"


def apart(more: Interval, less: Interval, scatter: Scatter, confidence: float = CONFIDENCE) -> bool:
    """Whether `more` is above `less`, each the interval of one sweep, of values that are above 0.

    Their distance as logarithms is beyond the facing halves of both and the allowance for how much sweeps
    scatter, added as squares; never where such a half is infinite.
    """
    if more.low <= 0 or math.isinf(less.high):
        return False
    allowance = _quantile(scatter.freedom, 0.5 + confidence / 2) * math.sqrt(2) * scatter.deviation
    halves = math.log(more.value / more.low), math.log(less.high / less.value)
    return math.log(more.value / less.value) > math.hypot(*halves, allowance)


def confidence_of_each(cells: int) -> float:
    """The confidence of each of `cells` intervals of which all hold together in 95 %: 1 − 0.05 / cells.

    Bonferroni, not Holm: Holm finds a little more, but has no intervals that agree with its words.
    """
    return 1 - (1 - CONFIDENCE) / max(1, cells)


@dataclass(frozen=True, slots=True)
class OverSweeps:
    """A ratio over several sweeps: their geometric mean, with Student's t interval over them.

    `deviation` is the standard deviation of the sweeps' mean logarithms; 0.04 is about 4 %. `chance` is how
    often sweeps would scatter at least as much if all of it came from their rounds; None: rounds do not say.
    """

    ratio: Interval
    deviation: float
    chance: float | None


def over_sweeps(sweeps: Sweeps) -> OverSweeps:
    """What `sweeps`, each the ratios of its rounds, say together. Raises ValueError below two sweeps."""
    if len(sweeps) < 2:
        raise ValueError("what sweeps say together needs two of them")
    logs = [[math.log(value) for value in rounds] for rounds in sweeps]
    means = [fmean(rounds) for rounds in logs]
    found = mean_interval(means)
    high = math.exp(found.high) if found.high < 700 else math.inf
    ratio = Interval(math.exp(found.value), math.exp(found.low), high, found.samples)
    return OverSweeps(ratio, stdev(means), _chance(logs))


def most_named(answers: Sequence[Sequence[str]]) -> tuple[str | None, int]:
    """The mode that is in most of the sweeps' `answers`, and in how many; None where nothing is named.

    An answer is the modes that tie, the one to ship first. Of several modes in equally many answers it is the
    one that is most often to be shipped, then the one that is named first.
    """
    modes = dict.fromkeys(mode for answer in answers for mode in answer)
    if not modes:
        return None, 0

    def counts(mode: str) -> tuple[int, int]:
        return sum(mode in answer for answer in answers), sum(mode in answer[:1] for answer in answers)

    named = max(modes, key=counts)
    return named, counts(named)[0]


def replicates(named: int, sweeps: int) -> bool:
    """Whether an answer that `named` of the `sweeps` contain replicates: at least four of five do."""
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
    smaller = min(map(len, sides))
    return Difference(fmean(candidate) - fmean(baseline), error, freedom, "sweeps", smaller)


def _of_rounds(baseline: Sequence[float], candidate: Sequence[float], scatter: Scatter) -> Difference:
    sides = (baseline, candidate)
    smaller = min(map(len, sides))
    if smaller < 2:
        raise ValueError("a comparison over rounds needs at least two rounds of either build")
    parts = [(variance(side) / len(side), len(side) - 1.0) for side in sides]
    parts.append((2 * scatter.deviation**2, scatter.freedom))
    total = sum(square for square, _ in parts)
    shares = sum(square**2 / freedom for square, freedom in parts)
    freedom = total**2 / shares if shares else math.inf
    return Difference(fmean(candidate) - fmean(baseline), math.sqrt(total), freedom, "rounds", smaller)


def _quantile(freedom: float, probability: float) -> float:
    return float(ndtri(probability) if math.isinf(freedom) else stdtrit(freedom, probability))


def _exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


def _chance(logs: Sequence[Sequence[float]]) -> float | None:
    """Welch's test that all sweeps have one mean, whatever the scatter of their rounds (Biometrika 38, 1951).

    None where a sweep has a single round, or rounds that do not scatter.
    """
    from scipy.stats import f_oneway  # where sweeps are compared: its import takes long

    if min(map(len, logs)) < 2 or not all(variance(rounds) for rounds in logs):
        return None
    return float(f_oneway(*logs, equal_var=False).pvalue)
