"""The formulas beside independent ones: scipy's tests, tables of textbooks, numbers worked out by hand.

An interval that is too wide covers the truth as well as a right one; only its ends tell them apart.
"""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from scipy import stats

from service.statistics.boundedness import (
    UNPROVED,
    LeftOpen,
    Split,
    counting_error,
    dispatch_share,
    total,
    widened,
)
from service.statistics.choice import Difference, Scatter, apart, difference
from service.statistics.intervals import (
    Interval,
    answered,
    as_json,
    mean_interval,
    median_interval,
    paired_ratio,
    quantile_interval,
    rate_interval,
    served_share,
    unpaired_ratio,
)
from service.statistics.knee import BoundedEstimate, Bounds, knee_ratio, met_point, pollaczek_khinchine

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


def test_a_ratio_of_two_pairs_that_says_nothing_has_no_upper_end() -> None:
    found = paired_ratio([1e-60, 1e60], [1.0, 1.0])
    assert found.value == pytest.approx(1.0)
    assert ends(found) == (pytest.approx(0.0), math.inf)


@pytest.mark.parametrize("confidence", CONFIDENCES)
@pytest.mark.parametrize(("before", "after"), [(FIRST, SHORT), (SHORT, SECOND), (FIRST[:2], SECOND)])
def test_an_unpaired_ratio_has_welchs_interval(
    before: list[float], after: list[float], confidence: float
) -> None:
    welch = stats.ttest_ind(logs(before), logs(after), equal_var=False)
    found = unpaired_ratio(before, after, confidence)
    assert logs(list(ends(found))) == pytest.approx(list(welch.confidence_interval(confidence)))
    assert found.samples == min(len(before), len(after))


def test_values_without_any_scatter_have_an_exact_ratio() -> None:
    assert unpaired_ratio([2.0] * 3, [1.0] * 5) == Interval(2.0, 2.0, 2.0, 3)


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
    assert as_json(Interval(1.0, -math.inf, math.inf, 1)) == {
        "value": 1.0, "low": None, "high": None, "samples": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kernel", "host", "unclassified"),
    [(60, 40, 0), (60, 40, 15), (3, 997, 2), (0, 30, 0), (30, 0, 0), (1, 1, 1)],
)
def test_a_share_of_samples_has_wilsons_interval(kernel: int, host: int, unclassified: int) -> None:
    def wilson(found: int, samples: int = kernel + host) -> tuple[float, float]:
        interval = stats.binomtest(found, samples).proportion_ci(0.95, "wilson")
        return interval.low, interval.high

    everything = kernel + host + unclassified
    low, high = wilson(host, everything)[0], wilson(host + unclassified, everything)[1]
    share = dispatch_share(kernel, host, unclassified)
    assert share is not None
    assert (share.low, share.high) == pytest.approx(widened(low, high, UNPROVED), abs=1e-6)
    value = host / (kernel + host)
    longer = max(value - wilson(host)[0], wilson(host)[1] - value)
    assert counting_error(kernel, host) == pytest.approx(longer, abs=1e-6)


def test_without_samples_counting_leaves_everything_open_and_no_share_leaves_its_range() -> None:
    assert counting_error(0, 0) == 1.0
    assert widened(0.05, 0.95, LeftOpen(0.1, 0.0)) == (0.0, 1.0)


def test_an_index_has_the_ends_of_its_samples_and_holds_the_index_by_time() -> None:
    """Steps of 4 and 6 s by time, and by samples 40 to 60."""
    share = dispatch_share(60, 40, 0)
    assert share is not None
    assert Split(4.0, 6.0, 3.0, 5.0, (60, 40, 0)).index_ends == (1 - share.high, 1 - share.low)
    assert Split(4.0, 6.0, 3.0, 5.0).index_ends == pytest.approx((0.5, 0.7))
    assert Split(0.1, 9.9, 0.1, 0.1, (60, 40, 0)).index_ends[1] == pytest.approx(0.99)
    assert Split(9.9, 0.1, 9.9, 9.9, (60, 40, 0)).index_ends[0] == pytest.approx(0.01)
    assert Split(4.0, 6.0, -1.0, 20.0).index_ends == (0.0, 1.0)


def test_samples_add_up_where_every_split_has_some() -> None:
    some, more, none = (Split(1.0, 1.0, 1.0, 1.0, samples) for samples in ((1, 2, 1), (10, 20, 3), None))
    assert total([some, more]).samples == (11, 22, 4)
    assert total([some, none]).samples is None
    assert total([]).samples is None


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
    assert difference([[1.0], [1.1]], [[1.2]], Scatter(9.0)).unit == "sweeps"


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


@pytest.mark.parametrize(("distance", "told"), [(0.301, True), (0.299, False), (-0.301, False)])
def test_intervals_are_apart_beyond_both_facing_halves_and_the_scatter(distance: float, told: bool) -> None:
    """√(0.2² + 0.1² + 0.2²) = 0.3, of which the last is 1.96 · √2 · the deviation."""
    scatter = Scatter(0.2 / (1.959964 * math.sqrt(2)))
    less = Interval(2.0, 0.1, 2.0 * math.exp(0.1), 8)
    more = Interval(*(2.0 * math.exp(distance + end) for end in (0.0, -0.2, 5.0)), samples=8)
    assert apart(more, less, scatter) == told


@pytest.mark.parametrize("shares", [[0.9, 1.0, 0.95, 0.85], [1.0] * 4, [0.5] * 6])
def test_a_share_in_time_has_students_interval_on_its_logit(shares: list[float]) -> None:
    """The delta method: the error of logit(p) is that of p over p (1 - p)."""
    requests, count = 20, len(shares)
    centre = (sum(share * requests for share in shares) + 1) / (requests * count + 2)
    variance = max(np.var(shares, ddof=1), centre * (1 - centre) / requests)
    error = math.sqrt(variance / count) / (centre * (1 - centre))
    reach = stats.t.ppf(0.975, count - 1) * error
    low, high = (1 / (1 + math.exp(-(math.log(centre / (1 - centre)) + end))) for end in (-reach, reach))
    found = met_point(7.0, shares, requests)
    mean = pytest.approx(np.mean(shares))
    assert (found.rate, found.share, found.requests) == (7.0, mean, requests * count)
    assert (found.low, found.high) == pytest.approx((min(low, found.share), max(high, found.share)))


def test_a_rate_over_visits_has_the_interval_of_a_ratio_estimate() -> None:
    """Standard error of the residuals, counts less rate times seconds, over the mean number of seconds."""
    counts, seconds = [3, 7, 4, 6], [1.0, 2.5, 1.4, 1.6]
    found = rate_interval(counts, seconds, 0.9)
    rate = 20 / 6.5
    residuals = np.array(counts) - rate * np.array(seconds)
    half = stats.t.ppf(0.95, 3) * stats.sem(residuals) / np.mean(seconds)
    assert (found.value, found.low, found.high) == pytest.approx((rate, rate - half, rate + half))


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
    assert found is not None
    assert found.value == middle
    assert ends(found) == pytest.approx(tuple(np.quantile(pooled, [0.5 - half, 0.5 + half])))


def test_a_ratio_of_knees_has_the_squares_of_both_errors_added() -> None:
    first, second = (BoundedEstimate(Bounds(v, v), 0.9 * v, 1.2 * v) for v in (50.0, 100.0))
    found = knee_ratio(first, second)
    below, above = (math.hypot(math.log(a), math.log(b)) for a, b in ((1 / 0.9, 1.2), (1.2, 1 / 0.9)))
    assert (found.low, found.high) == pytest.approx((2 * math.exp(-below), 2 * math.exp(above)))


@pytest.mark.parametrize(
    ("low", "high", "tells"),
    [(0.0, math.inf, False), (0.5, math.inf, True), (0.0, 9.0, True), (0.5, 9.0, True)],
)
def test_a_bounded_estimate_tells_what_its_interval_excludes(low: float, high: float, tells: bool) -> None:
    assert BoundedEstimate(Bounds(5.0, 5.0), low, high).tells == tells


def test_answers_are_counted_from_the_last_request_that_is_not_judged() -> None:
    """Of two judged requests one was answered, 2.3 s after the last answer before; they were due in 2 s."""
    due, ended = [0.0, 1.0, 2.0, 3.0], [0.5, 1.6, None, 3.9]
    assert answered(due, ended, 2) == (1, pytest.approx(2.3))
    assert served_share(due, ended, 2) == pytest.approx(1 / 2 * 2 / 2.3)
    assert answered(due, [None, None, 2.5, 3.5], 2) == (2, pytest.approx(2.5))


def test_a_queue_waits_as_its_formula_says_by_hand() -> None:
    """λ = 10, E[S] = 0.05, E[S²] = 0.0028: 0.028 / (2 · 0.5)."""
    mean_square = [0.05 - math.sqrt(0.0003), 0.05 + math.sqrt(0.0003)]
    assert pollaczek_khinchine(10.0, mean_square) == pytest.approx(0.028)
