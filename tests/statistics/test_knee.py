"""A knee lies where the ladder says, or on the side that it says."""

from __future__ import annotations

import math

import pytest

from service.statistics.intervals import BoundedEstimate, Bounds, RatePoint, knee


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


def test_one_unlucky_rate_below_the_knee_does_not_become_the_knee() -> None:
    assert knee(ladder(1.0, 0.94, 1.0, 0.5), 0.95).value.low > 30.0


def test_the_interval_holds_the_knee_and_is_open_where_an_end_of_the_shares_never_crosses() -> None:
    closed = knee(ladder(1.0, 0.97, 0.9, 0.5, reach=0.02), 0.95)
    assert 0 < closed.low < closed.value.low < closed.high < math.inf
    assert knee(ladder(0.96, 0.9, reach=0.05), 0.95).low == 0
    assert math.isinf(knee(ladder(0.99, 0.93, reach=0.05), 0.95).high)
    points = ladder(1.0, 0.99, 0.7, 0.1, reach=0.03)
    assert knee(points[::-1], 0.95) == knee(points, 0.95)
    with pytest.raises(ValueError, match="at least one rate"):
        knee([], 0.95)


def test_an_interval_tells_something_where_it_excludes_a_rate() -> None:
    assert not BoundedEstimate(Bounds(50.0, 50.0), 0.0, math.inf).tells
    something = [(0.5, math.inf), (0.0, 9.0), (0.5, 9.0)]
    assert all(BoundedEstimate(Bounds(5.0, 5.0), *ends).tells for ends in something)
