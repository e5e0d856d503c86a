"""The roofline's formula, on numbers that can be counted by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.boundedness import attended_positions, decode_bytes, roofline
from service.statistics.intervals import Interval

SIZES = {"weights": 1000.0, "cache_per_position": 8.0, "activations_per_row": 50.0}


def test_weights_are_read_once_and_the_rest_per_row() -> None:
    assert decode_bytes(SIZES, rows=1, positions=10) == 1000 + 80 + 50
    assert decode_bytes(SIZES, rows=4, positions=10) == 1000 + 4 * (80 + 50)


def test_attended_positions_are_the_mean_over_the_steps() -> None:
    assert attended_positions(6, 1) == 7
    assert attended_positions(6, 4) == sum((7, 8, 9, 10)) / 4


def test_the_share_is_what_the_kernels_attain_of_the_bandwidth() -> None:
    found = roofline(1e6, Interval(1e-3, 0.8e-3, 2e-3, 9), 4e9)
    assert found is not None
    assert found.attained.value == pytest.approx(1e9)
    ends = (found.share.value, found.share.low, found.share.high)
    assert ends == pytest.approx((0.25, 0.125, 0.3125))


def test_without_kernel_time_there_is_no_roofline() -> None:
    assert roofline(1e6, Interval(0.0, 0.0, 1e-3, 9), 4e9) is None


def test_kernel_time_that_may_be_nothing_leaves_the_share_open_above() -> None:
    found = roofline(1e6, Interval(1e-3, 0.0, 2e-3, 9), 4e9)
    assert found is not None
    assert found.share.high == float("inf")


@given(st.floats(1, 1e12), st.floats(1e-6, 1), st.floats(1, 1e13))
def test_half_the_kernel_time_is_twice_the_share(moved: float, seconds: float, rate: float) -> None:
    shares = [roofline(moved, Interval(s, s, s, 1), rate) for s in (seconds, seconds / 2)]
    assert shares[0] is not None
    assert shares[1] is not None
    assert shares[1].share.value == pytest.approx(2 * shares[0].share.value)
