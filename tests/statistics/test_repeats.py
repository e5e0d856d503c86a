"""What several sweeps of one build say together, beside scipy's own test and worked by hand."""

from __future__ import annotations

import math
from random import Random

import pytest
from scipy import stats

from service.statistics.choice import most_named, over_sweeps, replicates

DRAWS = Random("repeats")


def drawn(centre: float, scatter: float, rounds: int) -> list[float]:
    return [math.exp(DRAWS.gauss(centre, scatter)) for _ in range(rounds)]


def test_the_ratio_is_the_geometric_mean_of_the_sweeps_however_many_rounds_each_has() -> None:
    found = over_sweeps([[2.0] * 16, [8.0] * 4])
    assert found.ratio.value == pytest.approx(4.0)
    assert found.deviation == pytest.approx(math.log(4) / math.sqrt(2))


def test_its_interval_is_students_over_sweeps_and_not_over_rounds() -> None:
    sweeps = [drawn(0.5, 0.05, 12) for _ in range(5)]
    means = [math.fsum(map(math.log, rounds)) / len(rounds) for rounds in sweeps]
    expected = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
    found = over_sweeps(sweeps)
    assert (found.ratio.low, found.ratio.high) == pytest.approx(
        (math.exp(expected.low), math.exp(expected.high))
    )
    assert found.ratio.samples == 5


def test_sweeps_that_scatter_as_their_rounds_do_are_rarely_called_otherwise() -> None:
    chances = [over_sweeps([drawn(0.5, 0.05, 12) for _ in range(5)]).chance or 0.0 for _ in range(400)]
    assert 8 <= sum(chance < 0.05 for chance in chances) <= 36
    apart = over_sweeps([drawn(0.5 + 0.1 * n, 0.02, 12) for n in range(5)]).chance
    assert apart is not None
    assert apart < 1e-6


def test_rounds_that_say_nothing_give_no_chance() -> None:
    assert over_sweeps([[2.0], [2.1, 2.2]]).chance is None
    assert over_sweeps([[2.0, 2.0], [2.1, 2.2]]).chance is None


def test_one_sweep_repeats_nothing() -> None:
    with pytest.raises(ValueError, match="two of them"):
        over_sweeps([[2.0, 2.1]])


def test_the_mode_that_most_answers_contain_is_named_ties_included() -> None:
    answers = [("a", "b"), ("b",), ("a", "b"), ("c",), ("b", "c")]
    assert most_named(answers) == ("b", 4)
    assert most_named([(), ()]) == (None, 0)
    assert most_named([]) == (None, 0)


def test_of_modes_in_equally_many_answers_the_one_to_ship_is_named() -> None:
    assert most_named([("a", "b"), ("b", "a"), ("b", "a")]) == ("b", 3)
    assert most_named([("a", "b"), ("b", "a")]) == ("a", 2)


@pytest.mark.parametrize(
    ("named", "sweeps", "expected"),
    [
        (4, 5, True),
        (3, 5, False),
        (3, 4, False),
        (4, 4, True),
        (2, 3, False),
        (2, 2, True),
        (1, 1, False),
        (8, 10, True),
    ],
)
def test_four_of_five_replicate(named: int, sweeps: int, expected: bool) -> None:
    assert replicates(named, sweeps) is expected
