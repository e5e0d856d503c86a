"""Intervals: their coverage, their symmetries and the inputs that give none."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.intervals import (
    Interval,
    mean_interval,
    median_interval,
    paired_ratio,
    unpaired_ratio,
)

DURATIONS = st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=40)


def covered(middle_of: str, repeats: int = 400) -> float:
    """The share of intervals from 30 draws of a skewed distribution that hold its true middle."""
    random = Random(3)
    inside = 0
    true = 1.0 if middle_of == "mean" else math.log(2)
    make = mean_interval if middle_of == "mean" else median_interval
    for _ in range(repeats):
        found = make([random.expovariate(1) for _ in range(30)])
        inside += found.low <= true <= found.high
    return inside / repeats


def test_a_median_interval_covers_the_median_of_a_skewed_distribution() -> None:
    assert covered("median") >= 0.94


def test_a_mean_interval_covers_the_mean_of_a_skewed_distribution_nearly() -> None:
    assert covered("mean") >= 0.90


@pytest.mark.parametrize(("count", "finite"), [(1, False), (5, False), (6, True)])
def test_a_median_interval_has_ends_from_six_values_on(count: int, finite: bool) -> None:
    found = median_interval([float(value) for value in range(count)])
    assert math.isfinite(found.low) == math.isfinite(found.high) == finite
    assert found.samples == count


def test_one_value_has_a_mean_without_ends() -> None:
    assert mean_interval([2.0]) == Interval(2.0, -math.inf, math.inf, 1)


@given(DURATIONS)
def test_a_value_lies_within_its_interval(values: list[float]) -> None:
    for found in (mean_interval(values), median_interval(values)):
        assert found.low <= found.value <= found.high


@given(DURATIONS, st.floats(1.1, 50))
def test_a_common_factor_between_pairs_is_found_exactly(values: list[float], factor: float) -> None:
    found = paired_ratio([factor * value for value in values], values)
    assert found.value == pytest.approx(factor)
    assert found.excludes_one


def test_independent_durations_that_overlap_do_not_exclude_one() -> None:
    assert not unpaired_ratio([1.0, 2.0, 3.0], [1.5, 2.5, 2.0]).excludes_one
    assert unpaired_ratio([10.0, 10.1, 9.9], [5.0, 5.1, 4.9]).excludes_one


def test_what_has_no_interval_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        mean_interval([])
    with pytest.raises(ValueError, match="at least one value"):
        median_interval([])
    with pytest.raises(ValueError, match="at least two durations"):
        unpaired_ratio([1.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0, 2.0], [1.0])


@pytest.mark.parametrize("wrong", [0.0, -1.0])
@pytest.mark.parametrize("side", [0, 1])
def test_a_ratio_of_durations_that_are_not_positive_is_refused(side: int, wrong: float) -> None:
    pairs = [[1.0] * 8, [1.0] * 8]
    pairs[side][3] = wrong
    with pytest.raises(ValueError, match="positive"):
        paired_ratio(*pairs)
