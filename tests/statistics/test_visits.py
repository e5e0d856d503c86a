"""What a visit serves of what it was offered, after its queue has filled."""

from __future__ import annotations

from math import inf
from random import Random
from statistics import mean

import pytest

from service.statistics.intervals import Interval, rate_interval, served_share, settling


@pytest.mark.parametrize(("requests", "left_out"), [(100, 25), (12, 3), (2, 1), (1, 0)])
def test_the_first_quarter_of_a_visit_is_not_judged(requests: int, left_out: int) -> None:
    assert settling(requests) == left_out


def test_answers_that_keep_up_are_all_served() -> None:
    due = [float(number) for number in range(20)]
    assert served_share(due, [instant + 0.7 for instant in due], 5) == pytest.approx(1.0)


def test_a_slow_server_serves_its_own_rate() -> None:
    due = [float(number) for number in range(40)]
    assert served_share(due, [2.0 * number for number in range(1, 41)], 10) == pytest.approx(0.5)


def test_refused_requests_are_not_served() -> None:
    due = [float(number) for number in range(41)]
    ended = [instant + 0.5 if number % 2 == 0 else None for number, instant in enumerate(due)]
    assert served_share(due, ended, 10) == pytest.approx(0.5, abs=0.05)
    assert served_share(due, [None] * 41, 10) == 0.0


@pytest.mark.parametrize("left_out", [0, 2])
def test_without_a_request_before_and_after_there_is_no_rate(left_out: int) -> None:
    with pytest.raises(ValueError, match="cannot be left out"):
        served_share([0.0, 1.0], [1.0, 2.0], left_out)


def test_a_rate_over_visits_is_not_raised_by_short_ones() -> None:
    """Visits of a Poisson process: the mean of their own rates is n / (n - 1) of the true one."""
    random = Random(5)
    counts, seconds = [4] * 4000, [sum(random.expovariate(10.0) for _ in range(4)) for _ in range(4000)]
    assert mean(c / s for c, s in zip(counts, seconds, strict=True)) == pytest.approx(13.3, rel=0.05)
    found = rate_interval(counts, seconds)
    assert found.low < 10.0 < found.high
    assert found.value == pytest.approx(10.0, rel=0.03)


def test_a_rate_of_one_visit_has_no_interval_and_of_no_time_is_refused() -> None:
    assert rate_interval([3], [1.5]) == Interval(2.0, -inf, inf, 1)
    with pytest.raises(ValueError, match="some seconds"):
        rate_interval([0, 0], [0.0, 0.0])
