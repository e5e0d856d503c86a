"""Quantiles of requests that come in visits: said where there are enough, with rounds as the unit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from service.statistics.intervals import least_requests, quantile_interval


@pytest.mark.parametrize(("share", "least"), [(0.5, 10), (0.9, 50), (0.99, 500)])
def test_a_quantile_is_absent_below_the_requests_that_it_needs(share: float, least: int) -> None:
    assert least_requests(share) == least
    requests = np.arange(float(least))
    assert quantile_interval([requests[:-1]], share) is None
    assert quantile_interval([requests], share) is not None


def test_the_value_is_that_of_all_requests_together() -> None:
    found = quantile_interval([list(range(50)), list(range(50, 101))], 0.5)
    assert found is not None
    assert found.value == 50


def test_requests_that_are_alike_within_a_round_make_the_interval_wider() -> None:
    random = np.random.default_rng(1)
    free = [random.normal(size=60) for _ in range(8)]
    coupled = [shift + 0.01 * random.normal(size=60) for shift in random.normal(size=8)]
    narrow, wide = quantile_interval(free, 0.5), quantile_interval(coupled, 0.5)
    assert narrow is not None
    assert wide is not None
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_an_end_beyond_all_requests_is_open() -> None:
    rounds = [[1.0] * 95 + [2.0] * 5] * 7 + [[1.0] * 60 + [9.0] * 40]
    found = quantile_interval(rounds, 0.99)
    assert found is not None
    assert math.isinf(found.high)


def test_a_single_round_has_no_interval() -> None:
    found = quantile_interval([range(20)], 0.5)
    assert found is not None
    assert (found.low, found.high) == (-math.inf, math.inf)


def test_intervals_of_independent_requests_cover_the_true_median() -> None:
    random = np.random.default_rng(2)
    found = [quantile_interval(list(random.exponential(size=(8, 40))), 0.5) for _ in range(300)]
    covered = sum(one is not None and one.low <= math.log(2) <= one.high for one in found)
    assert covered >= 0.90 * len(found)


def test_a_quantile_that_is_infinite_is_absent_and_one_below_is_not() -> None:
    """Two of eight rounds without an end: three requests in four have a latency."""
    rounds = [np.full(40, 1.0 + number / 10) for number in range(6)] + [np.full(40, np.inf)] * 2
    median = quantile_interval(rounds, 0.5)
    assert median is not None
    assert median.value == pytest.approx(1.3, abs=0.11)
    assert quantile_interval(rounds, 0.9) is None
    assert quantile_interval([np.full(40, np.inf)] * 8, 0.5) is None
