"""The index's interval spans the dispatch's interval and the scatter of rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.boundedness import Split, index_interval
from service.statistics.intervals import mean_interval

parts = st.floats(1e-4, 1.0)


def split(dispatch: float, kernel: float, reach: float = 0.0) -> Split:
    return Split(dispatch, kernel, dispatch * (1 - reach), dispatch * (1 + reach))


def test_without_scatter_the_ends_are_the_index_at_the_ends_of_the_dispatch() -> None:
    found = index_interval([split(0.4, 0.6, reach=0.25)] * 8)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((0.6, 0.5, 0.7))


def test_measured_dispatch_leaves_only_the_scatter_of_rounds() -> None:
    rounds = [split(0.4 + 0.01 * (-1) ** n, 0.6) for n in range(8)]
    found = index_interval(rounds)
    scatter = mean_interval([one.index for one in rounds])
    assert found is not None
    assert found.high - found.value == pytest.approx(scatter.high - scatter.value, rel=1e-6)


def test_scatter_widens_the_interval_of_an_estimate_on_both_sides() -> None:
    even = index_interval([split(0.4, 0.6, reach=0.1)] * 8)
    uneven = index_interval([split(0.4 + 0.05 * (-1) ** n, 0.6, reach=0.1) for n in range(8)])
    assert even is not None
    assert uneven is not None
    assert uneven.low < even.low < even.high < uneven.high


def test_the_index_is_of_sums_not_a_mean_of_ratios() -> None:
    found = index_interval([split(1.0, 3.0), split(1.0, 1.0)])
    assert found is not None
    assert found.value == pytest.approx(4 / 6)


def test_a_single_round_leaves_everything_open() -> None:
    found = index_interval([split(0.4, 0.6)])
    assert found is not None
    assert (found.low, found.high) == (0.0, 1.0)


def test_without_rounds_or_without_time_there_is_no_index() -> None:
    assert index_interval([]) is None
    assert index_interval([split(0.0, 0.0)]) is None


@given(st.lists(st.tuples(parts, parts), min_size=2, max_size=12), st.floats(0, 3))
def test_the_interval_contains_the_value_and_stays_a_share(
    rounds: list[tuple[float, float]], reach: float
) -> None:
    found = index_interval([split(*values, reach=min(reach, 1.0)) for values in rounds])
    assert found is not None
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
