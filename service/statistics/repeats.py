"""What sweeps of one build say together: a ratio over all of them, and whether their answers agree.

Imports nothing of ours but the other statistics. As in `builds`, a sweep is the unit of replication.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from scipy.special import fdtrc

from service.statistics.builds import Sweeps
from service.statistics.intervals import Interval, mean_interval


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


def _chance(logs: Sequence[Sequence[float]]) -> float | None:
    """Welch's test that all sweeps have one mean, whatever the scatter of their rounds (Biometrika 38, 1951).

    None where a sweep has a single round, or rounds that do not scatter.
    """
    if min(map(len, logs)) < 2 or not all(variance(rounds) for rounds in logs):
        return None
    count = len(logs)
    means = [fmean(rounds) for rounds in logs]
    weights = [len(rounds) / variance(rounds) for rounds in logs]
    total = math.fsum(weights)
    centre = math.fsum(w * mean for w, mean in zip(weights, means, strict=True)) / total
    between = math.fsum(w * (mean - centre) ** 2 for w, mean in zip(weights, means, strict=True)) / (
        count - 1
    )
    unequal = math.fsum(
        (1 - weight / total) ** 2 / (len(rounds) - 1) for weight, rounds in zip(weights, logs, strict=True)
    )
    statistic = between / (1 + 2 * (count - 2) / (count**2 - 1) * unequal)
    return float(fdtrc(count - 1, (count**2 - 1) / (3 * unequal), statistic))
