"""The rules by which a row gets its verdict."""

from __future__ import annotations

import math

import pytest

from service.selftest.results import (
    count_result,
    difference_of_shares,
    exact_result,
    interval_result,
    not_measurable,
    share_interval,
    verdict_within,
    worst,
)
from service.statistics.intervals import Interval


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 8)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.80, 0.95, "pass"),
        (0.75, 1.25, "pass"),
        (0.70, 0.80, "undecided"),
        (1.20, 1.30, "undecided"),
        (0.50, 1.50, "undecided"),
        (0.50, 0.74, "fail"),
        (1.26, 9.00, "fail"),
    ],
)
def test_a_row_passes_inside_its_bound_fails_outside_and_is_undecided_across_it(
    low: float, high: float, verdict: str
) -> None:
    assert verdict_within(interval(low, high), 0.75, 1.25) == verdict


def test_an_interval_without_end_is_never_decided() -> None:
    assert verdict_within(Interval(1.0, -math.inf, math.inf, 1), 0.75, 1.25) == "undecided"


def test_one_failure_makes_several_verdicts_a_failure() -> None:
    assert worst(["pass", "undecided", "fail"]) == "fail"
    assert worst(["pass", "undecided"]) == "undecided"
    assert worst(["pass", "not measurable here"]) == "pass"


def test_a_count_passes_at_its_bound_and_fails_only_where_the_share_is_surely_lower() -> None:
    verdicts = {count: count_result("x", count, 40, 35).verdict for count in (40, 35, 34, 31, 30, 0)}
    assert verdicts == {40: "pass", 35: "pass", 34: "undecided", 31: "undecided", 30: "fail", 0: "fail"}


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    share = share_interval(8, 10)
    assert (share.low, share.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert share_interval(0, 10).low == 0.0
    assert share_interval(10, 10).high == 1.0


def test_the_difference_of_two_shares_is_as_unsure_as_both() -> None:
    difference = difference_of_shares(600, 1000, 500, 1000)
    assert difference.value == pytest.approx(0.1)
    assert (difference.low, difference.high) == pytest.approx((0.056, 0.144), abs=2e-3)


def test_a_row_carries_the_value_and_the_interval_that_it_was_made_from() -> None:
    measured = interval_result("a", "≤ 1", Interval(0.5, 0.4, 0.6, 9), most=1, unit="s", numbers={"n": [0.5]})
    assert (measured.value, measured.low, measured.high, measured.numbers) == (0.5, 0.4, 0.6, {"n": [0.5]})
    exact = exact_result("b", "all", False, 3.0, "of 5")
    assert (exact.verdict, exact.value, exact.low, exact.high) == ("fail", 3.0, 3.0, 3.0)
    counted = count_result("c", 8, 10, 7)
    share = share_interval(8, 10)
    assert (counted.value, counted.low, counted.high) == (8, share.low * 10, share.high * 10)
    absent = not_measurable("d", "all", "no GPU")
    assert (absent.value, absent.low, absent.high, absent.note) == (None, None, None, "no GPU")
