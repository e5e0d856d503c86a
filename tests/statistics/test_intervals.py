"""Intervals, quantiles and rates beside independent ones: scipy, tables of textbooks, numbers by hand."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from scipy import stats

from service.statistics.intervals import (
    Interval,
    answered,
    least_requests,
    mean_interval,
    median_interval,
    named_fields,
    paired_ratio,
    quantile_interval,
    rate_interval,
    served_share,
    settling,
    unpaired_ratio,
)

DRAWS = Random("references")
FIRST, SECOND, SHORT = ([DRAWS.lognormvariate(0.1, 0.4) for _ in range(count)] for count in (9, 9, 4))
CONFIDENCES = (0.8, 0.95, 0.99)


def logs(values: list[float]) -> list[float]:
    return [math.log(value) for value in values]


def ends(interval: Interval) -> tuple[float, float]:
    return interval.low, interval.high


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize("values", [FIRST, SHORT, FIRST[:2]])
def test_a_mean_has_students_interval(values: list[float], confidence: float) -> None:
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(confidence)
    found = mean_interval(values, confidence)
    assert ends(found) == pytest.approx((expected.low, expected.high))
    assert (found.value, found.samples) == (pytest.approx(np.mean(values)), len(values))


@pytest.mark.parametrize("confidence", CONFIDENCES)
def test_a_paired_ratio_has_that_of_its_logarithms(confidence: float) -> None:
    expected = stats.ttest_rel(logs(FIRST), logs(SECOND)).confidence_interval(confidence)
    assert logs(list(ends(paired_ratio(FIRST, SECOND, confidence)))) == pytest.approx(list(expected))


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize(("before", "after"), [(FIRST, SHORT), (SHORT, SECOND), (FIRST[:2], SECOND)])
def test_an_unpaired_ratio_has_welchs_interval(
    before: list[float], after: list[float], confidence: float
) -> None:
    welch = stats.ttest_ind(logs(before), logs(after), equal_var=False)
    found = unpaired_ratio(before, after, confidence)
    assert logs(list(ends(found))) == pytest.approx(list(welch.confidence_interval(confidence)))
    assert found.samples == min(len(before), len(after))


@pytest.mark.parametrize(
    ("count", "rank"),
    [(6, 1), (8, 1), (9, 2), (11, 2), (12, 3), (15, 4), (20, 6), (25, 8), (40, 14), (50, 18)],
)
def test_a_median_lies_between_the_ranks_of_the_sign_tests_table(count: int, rank: int) -> None:
    """Ranks r and n + 1 - r: of n tosses of a coin fewer than r are heads in at most 2.5 % of the cases."""
    assert stats.binom.cdf(rank - 1, count, 0.5) <= 0.025 < stats.binom.cdf(rank, count, 0.5)
    found = median_interval([float(value) for value in range(count, 0, -1)])
    assert ends(found) == (rank, count + 1 - rank)
    assert found.value == (count + 1) / 2


def test_ends_that_touch_one_exclude_nothing_and_open_ones_are_null_in_json() -> None:
    assert not Interval(1.1, 1.0, 1.2, 8).excludes_one
    assert not Interval(0.9, 0.8, 1.0, 8).excludes_one
    assert Interval(1.05, 1.01, 1.09, 8).excludes_one
    assert Interval(0.97, 0.95, 0.99, 8).excludes_one
    assert named_fields(Interval(1.0, -math.inf, math.inf, 1), "seconds") == {
        "seconds": 1.0, "low": None, "high": None, "samples": 1,
    }  # fmt: skip


def test_what_says_nothing_leaves_its_ends_open_and_what_does_not_scatter_is_exact() -> None:
    assert mean_interval([2.0]) == Interval(2.0, -math.inf, math.inf, 1)
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) == Interval(3.0, -math.inf, math.inf, 5)
    assert rate_interval([3], [1.5]) == Interval(2.0, -math.inf, math.inf, 1)
    single = quantile_interval([range(20)], 0.5)
    assert ends(single) == (-math.inf, math.inf)
    beyond = quantile_interval([[1.0] * 95 + [2.0] * 5] * 7 + [[1.0] * 60 + [9.0] * 40], 0.99)
    assert math.isinf(beyond.high)
    ratio = paired_ratio([1e-60, 1e60], [1.0, 1.0])
    assert (ratio.value, *ends(ratio)) == (pytest.approx(1.0), pytest.approx(0.0), math.inf)
    assert unpaired_ratio([2.0] * 3, [1.0] * 5) == Interval(2.0, 2.0, 2.0, 3)


@pytest.mark.parametrize(("share", "least"), [(0.5, 10), (0.9, 50), (0.99, 500)])
def test_a_quantile_is_absent_below_the_requests_that_it_needs(share: float, least: int) -> None:
    assert least_requests(share) == least
    requests = np.arange(float(least))
    assert quantile_interval([requests[:-1]], share) is None
    assert quantile_interval([requests], share) is not None


def test_a_quantile_that_is_infinite_is_absent_and_one_below_is_not() -> None:
    """Two of eight rounds without an end: three requests in four have a latency."""
    rounds = [np.full(40, 1.0 + number / 10) for number in range(6)] + [np.full(40, np.inf)] * 2
    median = quantile_interval(rounds, 0.5)
    assert median.value == pytest.approx(1.3, abs=0.11)
    assert quantile_interval(rounds, 0.9) is None
    assert quantile_interval([np.full(40, np.inf)] * 8, 0.5) is None


def test_a_median_of_visits_has_woodruffs_interval() -> None:
    """Ends of the share below the median, by the scatter of the visits' own counts, read as quantiles."""
    visits = [[1.0, 2.0, 3.0, 9.0], [2.5, 4.0, 5.0, 6.0], [0.5, 1.5, 7.0, 8.0], [3.5, 4.5, 5.5, 6.5, 7.5]]
    pooled = np.sort(np.concatenate([np.array(visit) for visit in visits]))
    middle = float(np.quantile(pooled, 0.5))
    below = np.array([(np.sum(np.array(v) < middle) + np.sum(np.array(v) <= middle)) / 2 for v in visits])
    sizes = np.array([len(visit) for visit in visits])
    residuals = below - below.sum() / sizes.sum() * sizes
    half = stats.t.ppf(0.975, 3) * stats.sem(residuals) / np.mean(sizes)
    found = quantile_interval(visits, 0.5)
    assert found.value == middle
    assert ends(found) == pytest.approx(tuple(np.quantile(pooled, [0.5 - half, 0.5 + half])))


def test_a_rate_over_visits_has_the_interval_of_a_ratio_estimate() -> None:
    """Standard error of the residuals, counts less rate times seconds, over the mean number of seconds."""
    counts, seconds = [3, 7, 4, 6], [1.0, 2.5, 1.4, 1.6]
    found = rate_interval(counts, seconds, 0.9)
    rate = 20 / 6.5
    residuals = np.array(counts) - rate * np.array(seconds)
    half = stats.t.ppf(0.95, 3) * stats.sem(residuals) / np.mean(seconds)
    assert (found.value, found.low, found.high) == pytest.approx((rate, rate - half, rate + half))


def test_answers_are_counted_from_the_last_request_that_is_not_judged() -> None:
    """Of two judged requests one was answered, 2.3 s after the last answer before; they were due in 2 s."""
    due, ended = [0.0, 1.0, 2.0, 3.0], [0.5, 1.6, None, 3.9]
    assert answered(due, ended, 2) == (1, pytest.approx(2.3))
    assert served_share(due, ended, 2) == pytest.approx(1 / 2 * 2 / 2.3)
    assert answered(due, [None, None, 2.5, 3.5], 2) == (2, pytest.approx(2.5))
    due = [float(number) for number in range(41)]
    half = [instant + 0.5 if number % 2 == 0 else None for number, instant in enumerate(due)]
    assert served_share(due, half, 10) == pytest.approx(0.5, abs=0.05)  # refused ones are not served
    assert served_share(due, [None] * 41, 10) == 0.0
    assert [settling(requests) for requests in (100, 12, 2, 1)] == [25, 3, 1, 0]  # a quarter is not judged
