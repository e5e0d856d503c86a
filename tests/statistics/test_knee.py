"""A knee lies where the ladder says, or on the side that it says; and how long a queue has to wait."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from service.statistics.knee import (
    BoundedEstimate,
    Bounds,
    RatePoint,
    kept_up_point,
    knee,
    knee_ratio,
    met_point,
    pollaczek_khinchine,
    replayed_waits,
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


@pytest.mark.parametrize("point", [met_point, kept_up_point])
def test_a_single_round_has_no_interval(point: object) -> None:
    assert callable(point)
    found = knee([point(10.0, [1.0], 100), point(20.0, [0.5], 100)], 0.95)
    assert found.value.known
    assert (found.low, found.high) == (0.0, math.inf)


def test_a_bound_of_a_knee_bounds_the_ratio() -> None:
    exact = BoundedEstimate(Bounds(50.0, 50.0), 45.0, 55.0)
    least = BoundedEstimate(Bounds(100.0, math.inf), 90.0, math.inf)
    below = BoundedEstimate(Bounds(0.0, 10.0), 0.0, 12.0)
    assert knee_ratio(exact, least) == BoundedEstimate(Bounds(2.0, math.inf), 90 / 55, math.inf)
    assert knee_ratio(least, exact) == BoundedEstimate(Bounds(0.0, 0.5), 0.0, 55 / 90)
    assert knee_ratio(below, least).value == Bounds(10.0, math.inf)
    assert knee_ratio(least, least) == BoundedEstimate(Bounds(0.0, math.inf), 0.0, math.inf)
    opened = BoundedEstimate(Bounds(50.0, 50.0), 0.0, math.inf)
    assert knee_ratio(exact, opened) == BoundedEstimate(Bounds(1.0, 1.0), 0.0, math.inf)
    nothing, something = opened, [(0.5, math.inf), (0.0, 9.0), (0.5, 9.0)]
    assert not nothing.tells
    assert all(BoundedEstimate(Bounds(5.0, 5.0), *ends).tells for ends in something)


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


def test_a_ratio_of_knees_has_the_squares_of_both_errors_added() -> None:
    first, second = (BoundedEstimate(Bounds(v, v), 0.9 * v, 1.2 * v) for v in (50.0, 100.0))
    found = knee_ratio(first, second)
    below, above = (math.hypot(math.log(a), math.log(b)) for a, b in ((1 / 0.9, 1.2), (1.2, 1 / 0.9)))
    assert (found.low, found.high) == pytest.approx((2 * math.exp(-below), 2 * math.exp(above)))


def test_waits_are_replayed_by_hand() -> None:
    assert replayed_waits([0.0, 1.0, 1.5, 9.0], [2.0, 1.0, 1.0, 1.0]) == [0.0, 1.0, 1.5, 0.0]


def test_a_long_replay_of_poisson_arrivals_waits_as_the_formula_says() -> None:
    random = np.random.default_rng(3)
    arrivals = np.cumsum(random.exponential(1 / 0.6, size=200_000)).tolist()
    service = random.lognormal(-0.02, 0.2, size=200_000).tolist()
    formula = pollaczek_khinchine(0.6, service)
    assert float(np.mean(replayed_waits(arrivals, service))) == pytest.approx(formula, rel=0.05)
    # By hand, λ = 10, E[S] = 0.05, E[S²] = 0.0028: 0.028 / (2 · 0.5). One that is always busy has none.
    mean_square = [0.05 - math.sqrt(0.0003), 0.05 + math.sqrt(0.0003)]
    assert pollaczek_khinchine(10.0, mean_square) == pytest.approx(0.028)
    assert [pollaczek_khinchine(rate, [1.0]) for rate in (1.0, 1.5)] == [None, None]
