"""Two builds by their sweeps, what several of one build say together, and the version of the method."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from random import Random

import pytest
from scipy import stats

from service.records import METHOD
from service.statistics.choice import (
    LATENCY_SCATTER,
    Difference,
    Scatter,
    Sweeps,
    difference,
    most_named,
    over_sweeps,
    replicates,
    word_of,
)
from tests.statistics.test_intervals import DRAWS, FIRST, SECOND, SHORT, ends, logs

NONE = Scatter(0.0)
SAME = "no detectable difference"


def test_builds_that_were_swept_in_turn_have_students_interval_of_their_pairs() -> None:
    pairs = stats.ttest_rel(logs(SECOND), logs(FIRST))
    found = difference([[v] for v in FIRST], [[v] for v in SECOND], Scatter(0.0), in_turn=True)
    assert logs(list(ends(found.interval(0.99)))) == pytest.approx(list(pairs.confidence_interval(0.99)))
    one_sided = stats.ttest_rel(logs(SECOND), logs(FIRST), alternative="less").confidence_interval(0.95)
    assert math.log(found.at_most()) == pytest.approx(one_sided.high)


def test_builds_with_several_sweeps_have_students_interval_of_two_samples() -> None:
    two = stats.ttest_ind(logs(SHORT), logs(FIRST)).confidence_interval(0.95)
    found = difference([[v] for v in FIRST], [[v] for v in SHORT], Scatter(9.0))
    assert logs(list(ends(found.interval(0.95)))) == pytest.approx(list(two))
    one_new = difference([[1.0], [1.1], [0.9], [1.0], [1.05]], [[1.4]], Scatter(9.0))
    assert (one_new.unit, one_new.freedom, one_new.samples) == ("sweeps", 4, 1)
    assert word_of(one_new.interval()) == "slower"


def test_one_sweep_each_has_welchs_interval_of_rounds_and_the_scatter_of_both() -> None:
    found = difference([FIRST], [SHORT], Scatter(0.0))
    welch = stats.ttest_ind(logs(SHORT), logs(FIRST), equal_var=False).confidence_interval(0.95)
    assert logs(list(ends(found.interval(0.95)))) == pytest.approx(list(welch))
    scattered = difference([FIRST], [SHORT], Scatter(0.3))
    assert scattered.error == pytest.approx(math.hypot(found.error, math.sqrt(2) * 0.3))
    assert difference([[1.0, 1.0]], [[1.0, 1.0]], Scatter(0.0)).error == 0.0


def test_what_a_stated_scatter_can_detect_is_the_sum_of_both_quantiles() -> None:
    """1.96 and 0.842 standard errors: 5 % two-sided, and a power of 80 %."""
    found = Difference(0.0, 0.01, math.inf, "rounds", 8).smallest_detectable()
    assert math.log(found) == pytest.approx((1.959964 + 0.841621) * 0.01, rel=1e-5)


def build(
    random: Random, sweeps: int, ratio: float = 1.0, between: float = 0.05, within: float = 0.04
) -> Sweeps:
    """Sweeps of 10 rounds whose means scatter by `between`, rounds by `within`."""
    found = []
    for _ in range(sweeps):
        shift = math.log(ratio) + random.gauss(0, between)
        found.append([math.exp(shift + random.gauss(0, within)) for _ in range(10)])
    return found


def pair_in_turn(random: Random, sweeps: int, ratio: float) -> tuple[Sweeps, Sweeps]:
    """Two builds in turn on a machine that gets slower by 10 % from pair to pair."""
    sides = build(random, sweeps, 1.0, 0.01), build(random, sweeps, ratio, 0.01)
    drifted = [[[v * 1.1**n for v in rounds] for n, rounds in enumerate(side)] for side in sides]
    return drifted[0], drifted[1]


@pytest.mark.parametrize(("before", "after"), [(5, 5), (8, 1)])
def test_a_difference_of_the_smallest_detectable_size_is_found_four_times_in_five(
    before: int, after: int
) -> None:
    random, seeds = Random("power"), 3000
    true = Difference(0.0, 0.05 * math.sqrt(1 / before + 1 / after), before + after - 2, "sweeps", after)
    ratio = true.smallest_detectable()
    words = [
        word_of(
            difference(
                build(random, before, within=0), build(random, after, ratio, within=0), NONE
            ).interval()
        )
        for _ in range(seeds)
    ]
    assert 0.78 * seeds <= words.count("slower") <= 0.82 * seeds
    assert "faster" not in words


def test_a_drift_between_pairs_hides_no_difference_of_builds_that_were_swept_in_turn() -> None:
    sides = pair_in_turn(Random("turn"), 5, 1.06)
    assert difference(*sides, NONE, in_turn=True).unit == "pairs of sweeps"
    assert word_of(difference(*sides, NONE, in_turn=True).interval()) == "slower"
    assert word_of(difference(*sides, NONE).interval()) == SAME


ROOT = Path(__file__).parents[2]
FIVE = ROOT / "benchmarks" / "20261122-epyc2-30a3a3a9-five-sweeps"


def committed() -> dict[str, dict[int, tuple[float, float]]]:
    """By cell and seed, mean and standard error of ln latency in the five committed sweeps of one build."""
    found: dict[str, dict[int, tuple[float, float]]] = {}
    for seed in range(11, 16):
        with (FIVE / f"seed-{seed}" / "summary.csv").open() as file:
            for row in csv.DictReader(file):
                low, value, high = (
                    math.log(float(row[f"latency_seconds{end}"])) for end in ("_low", "", "_high")
                )
                if not row["load"]:
                    found.setdefault(row["cell"], {})[seed] = (value, (high - low) / 2 / 2.131)
    return found


def test_the_assumed_scatter_is_that_of_the_committed_sweeps() -> None:
    beyond = []
    for one in committed().values():
        means, errors = zip(*one.values(), strict=True)
        centre = sum(means) / 5
        beyond.append(sum((m - centre) ** 2 for m in means) / 4 - sum(e**2 for e in errors) / 5)
    assert math.sqrt(sum(beyond) / len(beyond)) == pytest.approx(LATENCY_SCATTER.deviation, abs=0.001)


def drawn(centre: float, scatter: float, rounds: int) -> list[float]:
    return [math.exp(DRAWS.gauss(centre, scatter)) for _ in range(rounds)]


def test_its_interval_is_students_over_sweeps_and_not_over_rounds() -> None:
    sweeps = [drawn(0.5, 0.05, 12) for _ in range(5)]
    means = [math.fsum(map(math.log, rounds)) / len(rounds) for rounds in sweeps]
    expected = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    found = over_sweeps(sweeps)
    assert (found.ratio.low, found.ratio.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    assert found.ratio.samples == 5


@pytest.mark.parametrize(
    ("answers", "named"),
    [
        (["a", "b", "b", None, "b"], ("b", 3)),
        (["a", "b"], ("a", 1)),
        ([None, None], (None, 0)),
        ([], (None, 0)),
    ],
)
def test_the_mode_that_most_answers_are_is_named(
    answers: list[str | None], named: tuple[str | None, int]
) -> None:
    assert most_named(answers) == named


def test_four_of_five_replicate() -> None:
    assert all(replicates(*one) for one in ((4, 5), (4, 4), (2, 2), (8, 10)))
    assert not any(replicates(*one) for one in ((3, 5), (3, 4), (2, 3), (1, 1)))


def test_the_changelogs_newest_method_section_names_the_version() -> None:
    newest = (ROOT / "CHANGELOG.md").read_text().partition("\n### Method\n")[2].partition("\n## ")[0]
    found = re.search(r"raised where values are no longer comparable: (\d+)\.", newest)
    assert int(found[1]) == METHOD
