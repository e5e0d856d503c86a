"""Two builds by their sweeps: what noise is called, what is found, and what counts as the unit."""

from __future__ import annotations

import csv
import math
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from service.statistics.choice import (
    LATENCY_SCATTER,
    Difference,
    Scatter,
    Sweeps,
    apart,
    confidence_of_each,
    difference,
    word_of,
)
from service.statistics.intervals import Interval, mean_interval

FIVE = Path(__file__).parents[2] / "benchmarks" / "20261122-epyc2-30a3a3a9-five-sweeps"
NONE = Scatter(0.0)
SAME = "no detectable difference"


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


@pytest.mark.parametrize(("before", "after", "known"), [(5, 5, NONE), (5, 1, NONE), (1, 1, Scatter(0.05))])
def test_equal_builds_are_called_alike_and_covered(before: int, after: int, known: Scatter) -> None:
    random, seeds = Random("equal"), 1000
    found = [difference(build(random, before), build(random, after), known).interval() for _ in range(seeds)]
    assert sum(word_of(one) == SAME for one in found) >= 0.93 * seeds
    assert 0.93 * seeds <= sum(one.low <= 1 <= one.high for one in found) <= 0.97 * seeds


def test_rounds_alone_would_call_the_noise_of_sweeps_a_difference() -> None:
    random, seeds = Random("noise"), 300
    words = [word_of(difference(build(random, 1), build(random, 1), NONE).interval()) for _ in range(seeds)]
    assert seeds - words.count(SAME) > 0.3 * seeds


@pytest.mark.parametrize(("ratio", "least", "most"), [(1.0, 0.01, 0.03), (1.3, 0.9, 1.0), (2.0, 1.0, 1.0)])
def test_intervals_of_one_sweep_each_are_apart_beyond_the_scatter(
    ratio: float, least: float, most: float
) -> None:
    random, seeds = Random("apart"), 2000
    found = [
        apart(_interval(build(random, 1, ratio)), _interval(build(random, 1)), Scatter(0.05))
        for _ in range(seeds)
    ]
    assert least <= found.count(True) / seeds <= most


def test_an_interval_that_one_round_leaves_open_is_apart_from_nothing() -> None:
    known, open_ended = Interval(4.0, 3.9, 4.1, 8), Interval(1.0, -math.inf, math.inf, 1)
    assert not apart(known, open_ended, NONE)
    assert not apart(Interval(9.0, -math.inf, math.inf, 1), known, NONE)
    assert apart(known, Interval(1.0, 0.9, 1.1, 8), NONE)


def _interval(sweeps: Sweeps) -> Interval:
    """Of the rounds of one sweep, of which it knows no more."""
    logs = mean_interval([math.log(value) for value in sweeps[0]])
    return Interval(*map(math.exp, (logs.value, logs.low, logs.high)), logs.samples)


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


def test_a_single_pair_in_turn_still_takes_sweeps_to_scatter() -> None:
    sides = pair_in_turn(Random("one"), 1, 1.06)
    assert difference(*sides, LATENCY_SCATTER, in_turn=True).unit == "rounds"
    assert word_of(difference(*sides, LATENCY_SCATTER, in_turn=True).interval()) == SAME


def test_one_new_sweep_is_judged_by_the_scatter_of_the_old_ones() -> None:
    old = [[1.0], [1.1], [0.9], [1.0], [1.05]]
    found = difference(old, [[1.4]], NONE)
    assert (found.unit, found.freedom, found.samples) == ("sweeps", 4, 1)
    assert word_of(found.interval()) == "slower"
    assert word_of(difference(old, [[1.12]], NONE).interval()) == SAME


def test_the_two_directions_are_each_others_inverse() -> None:
    random = Random("inverse")
    sides = build(random, 4), build(random, 3, 1.2)
    there, back = (difference(*pair, NONE).interval() for pair in (sides, sides[::-1]))
    assert there.value == pytest.approx(1 / back.value)
    assert there.low == pytest.approx(1 / back.high)


def test_a_sure_difference_within_two_percent_is_none() -> None:
    assert word_of(Interval(1.01, 1.005, 1.015, 9)) == SAME
    assert word_of(Interval(1.02, 1.005, 1.035, 9)) == "slower"
    assert word_of(Interval(0.9, 0.85, 0.95, 9)) == "faster"


def test_all_intervals_of_many_cells_hold_together() -> None:
    assert confidence_of_each(1) == 0.95
    assert confidence_of_each(10) == pytest.approx(0.995)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(ValueError, match="two rounds"):
        difference([[1.0]], [[1.0, 1.1]], NONE)
    with pytest.raises(ValueError, match="at least one sweep"):
        difference([], [[1.0, 1.1]], NONE)
    with pytest.raises(ValueError, match="equally many"):
        difference([[1.0]], [[1.0], [1.1]], NONE, in_turn=True)


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


def as_rounds(mean: float, error: float) -> list[float]:
    """16 rounds of this mean and standard error."""
    reach = error * math.sqrt(15)
    return [math.exp(mean + reach * (-1) ** n) for n in range(16)]


def differing_pairs(scatter: Scatter) -> int:
    cells = committed()
    confidence = confidence_of_each(len(cells))
    return sum(
        word_of(difference([as_rounds(*one[a])], [as_rounds(*one[b])], scatter).interval(confidence)) != SAME
        for one in cells.values()
        for a, b in combinations(range(11, 16), 2)
    )


def test_no_two_of_five_real_sweeps_of_one_build_differ_and_by_rounds_alone_some_would() -> None:
    assert differing_pairs(LATENCY_SCATTER) == 0
    assert differing_pairs(NONE) > 10


@pytest.mark.parametrize("first", list(combinations(range(11, 16), 2)))
def test_no_split_of_five_real_sweeps_of_one_build_differs(first: tuple[int, int]) -> None:
    cells = committed()
    rest = [seed for seed in range(11, 16) if seed not in first]
    for one in cells.values():
        sides = [[[math.exp(one[seed][0])] for seed in seeds] for seeds in (first, rest)]
        found = difference(*sides, NONE)
        assert found.unit == "sweeps"
        assert word_of(found.interval(confidence_of_each(len(cells)))) == SAME


def test_the_assumed_scatter_is_that_of_the_committed_sweeps() -> None:
    beyond = []
    for one in committed().values():
        means, errors = zip(*one.values(), strict=True)
        centre = sum(means) / 5
        beyond.append(sum((m - centre) ** 2 for m in means) / 4 - sum(e**2 for e in errors) / 5)
    assert math.sqrt(sum(beyond) / len(beyond)) == pytest.approx(LATENCY_SCATTER.deviation, abs=0.001)
