"""A knee lies where the ladder says, or on the side that it says; nothing is extrapolated."""

from __future__ import annotations

import math

import pytest

from service.statistics.knee import (
    BoundedEstimate,
    Bounds,
    RatePoint,
    kept_up_point,
    knee,
    knee_ratio,
    met_point,
)


def ladder(*shares: float, reach: float = 0.0) -> list[RatePoint]:
    """Points at 10, 20, … per second, whose intervals reach so far to both sides."""
    return [
        RatePoint(10.0 * number, share, share - reach, share + reach, 100)
        for number, share in enumerate(shares, start=1)
    ]


def test_the_knee_is_interpolated_between_the_rates_around_the_crossing() -> None:
    found = knee(ladder(1.0, 1.0, 0.9), 0.95).value
    assert found.known
    assert found.low == pytest.approx(25.0)


def test_a_ladder_that_is_served_throughout_says_at_least_and_one_that_is_not_says_below() -> None:
    above, below = knee(ladder(1.0, 0.97), 0.95), knee(ladder(0.9, 0.5), 0.95)
    assert (above.value, above.high) == (Bounds(20.0, math.inf), math.inf)
    assert (below.value, below.low) == (Bounds(0.0, 10.0), 0.0)
    assert not above.value.known
    assert not below.value.known


def test_the_order_of_the_points_does_not_matter() -> None:
    points = ladder(1.0, 0.99, 0.7, 0.1, reach=0.03)
    assert knee(points[::-1], 0.95) == knee(points, 0.95)


def test_one_unlucky_rate_below_the_knee_does_not_become_the_knee() -> None:
    assert knee(ladder(1.0, 0.94, 1.0, 0.5), 0.95).value.low > 30.0


def test_the_interval_holds_the_knee_and_is_open_where_an_end_of_the_shares_never_crosses() -> None:
    closed = knee(ladder(1.0, 0.97, 0.9, 0.5, reach=0.02), 0.95)
    assert 0 < closed.low < closed.value.low < closed.high < math.inf
    assert knee(ladder(0.96, 0.9, reach=0.05), 0.95).low == 0
    assert math.isinf(knee(ladder(0.99, 0.93, reach=0.05), 0.95).high)


def test_rounds_that_all_read_everything_in_time_do_not_prove_it() -> None:
    few, many = met_point(1.0, [1.0] * 8, 10), met_point(1.0, [1.0] * 8, 1000)
    assert (few.share, few.high) == (1.0, 1.0)
    assert few.low < many.low < 1.0


def test_rounds_that_scatter_widen_the_share_beyond_independent_requests() -> None:
    alike, apart = met_point(1.0, [0.9] * 8, 100), met_point(1.0, [1.0, 0.8] * 4, 100)
    assert apart.high - apart.low > alike.high - alike.low


@pytest.mark.parametrize("point", [met_point, kept_up_point])
def test_a_single_round_has_no_interval(point: object) -> None:
    assert callable(point)
    found = knee([point(10.0, [1.0], 100), point(20.0, [0.5], 100)], 0.95)
    assert found.value.known
    assert (found.low, found.high) == (0.0, math.inf)


def test_a_served_rate_may_exceed_what_was_offered() -> None:
    assert knee([kept_up_point(10.0, [1.1, 1.0], 9), kept_up_point(20.0, [0.5, 0.6], 9)], 0.98).value.known


def test_a_ratio_is_no_narrower_than_either_knee() -> None:
    first = BoundedEstimate(Bounds(50.0, 50.0), 45.0, 55.0)
    second = BoundedEstimate(Bounds(100.0, 100.0), 95.0, 105.0)
    found = knee_ratio(first, second)
    assert found.value == Bounds(2.0, 2.0)
    assert found.low < 2 * 50 / 55
    assert found.high > 2 * 50 / 45


def test_a_bound_of_a_knee_bounds_the_ratio() -> None:
    exact = BoundedEstimate(Bounds(50.0, 50.0), 45.0, 55.0)
    least = BoundedEstimate(Bounds(100.0, math.inf), 90.0, math.inf)
    below = BoundedEstimate(Bounds(0.0, 10.0), 0.0, 12.0)
    assert knee_ratio(exact, least) == BoundedEstimate(Bounds(2.0, math.inf), 90 / 55, math.inf)
    assert knee_ratio(least, exact) == BoundedEstimate(Bounds(0.0, 0.5), 0.0, 55 / 90)
    assert knee_ratio(below, least).value == Bounds(10.0, math.inf)
    assert knee_ratio(least, least) == BoundedEstimate(Bounds(0.0, math.inf), 0.0, math.inf)


def test_an_open_end_opens_the_ratio() -> None:
    closed = BoundedEstimate(Bounds(50.0, 50.0), 45.0, 55.0)
    opened = BoundedEstimate(Bounds(50.0, 50.0), 0.0, math.inf)
    found = knee_ratio(closed, opened)
    assert (found.value, found.low, found.high) == (Bounds(1.0, 1.0), 0.0, math.inf)


def test_no_rates_have_no_knee() -> None:
    with pytest.raises(ValueError, match="at least one rate"):
        knee([], 0.95)
