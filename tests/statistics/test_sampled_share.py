"""The share of dispatch by counted samples, and an interval that holds the truth as often as it says."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.boundedness import (
    UNPROVED,
    DispatchShare,
    LeftOpen,
    counting_error,
    dispatch_share,
    widened,
)

counts = st.integers(min_value=0, max_value=10_000)


def test_the_value_is_the_hosts_share_of_what_is_classified() -> None:
    found = dispatch_share(kernel=60, host=40, unclassified=10)
    assert found is not None
    assert found.value == pytest.approx(0.4)


def test_without_samples_nothing_is_known() -> None:
    assert dispatch_share(0, 0, 0) is None


@given(kernel=counts, host=counts, unclassified=counts)
def test_the_value_lies_within_its_interval_and_that_within_0_and_1(
    kernel: int, host: int, unclassified: int
) -> None:
    found = dispatch_share(kernel, host, unclassified)
    if found is not None:
        assert 0 <= found.low <= found.value <= found.high <= 1


@given(kernel=counts, host=counts, unclassified=counts)
def test_what_is_unclassified_widens_both_ends(kernel: int, host: int, unclassified: int) -> None:
    named, some = dispatch_share(kernel, host, 0), dispatch_share(kernel, host, unclassified)
    if named is not None and some is not None:
        assert some.low <= named.low + 1e-12
        assert some.high >= named.high - 1e-12
        assert some.value == named.value


@pytest.mark.parametrize(("kernel", "host"), [(0, 20), (20, 0)])
def test_samples_of_one_side_alone_leave_room_for_the_other(kernel: int, host: int) -> None:
    found = dispatch_share(kernel, host, 0)
    assert found is not None
    assert found.high - found.low > 0.1


@pytest.mark.parametrize(("kernel", "host"), [(20, 0), (0, 20), (19, 1), (208, 0), (60, 40)])
def test_counting_leaves_open_all_that_the_interval_of_a_single_request_does(kernel: int, host: int) -> None:
    found = dispatch_share(kernel, host, 0)
    assert found is not None
    error, share = counting_error(kernel, host), host / (kernel + host)
    assert widened(share, share + error)[1] >= found.high - 1e-12
    assert widened(max(0.0, share - error), share)[0] <= found.low + 1e-12


def test_each_part_may_hold_some_of_the_other_however_many_samples_there_are() -> None:
    low, high = widened(0.4, 0.4)
    classes, rate = UNPROVED
    assert low * (1 - classes) + classes + rate == pytest.approx(0.4)  # dispatch, and some of the kernels
    assert high * (1 - classes) - rate == pytest.approx(0.4)  # a part of the dispatch
    assert widened(0.4, 0.4, LeftOpen(1.0, 0.0)) == (0.0, 1.0)
    many = dispatch_share(6_000_000, 4_000_000, 0)
    assert many is not None
    assert (many.low, many.high) == pytest.approx((low, high), abs=1e-3)


def covered(
    truth: float, samples: int, taken_for_kernel: float, taken_for_host: float, shifted: float = 0.0
) -> float:
    """How often the interval holds the truth, where these shares of either part are taken for the other, and
    sampling shifts the share of dispatch by `shifted`.
    """
    random, held = Random(f"{truth}/{samples}"), 0
    seen = truth * (1 - taken_for_kernel) + (1 - truth) * taken_for_host + shifted
    seen = min(1.0, max(0.0, seen))
    for _ in range(1000):
        host = sum(random.random() < seen for _ in range(samples))
        found = dispatch_share(samples - host, host, 0)
        held += isinstance(found, DispatchShare) and found.low <= truth <= found.high
    return held / 1000


@pytest.mark.parametrize("truth", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(
    "wrong",
    [
        (0.0, 0.0, 0.0),
        (UNPROVED.classes, 0.0, -UNPROVED.rate),
        (0.0, UNPROVED.classes, UNPROVED.rate),
    ],
)
def test_the_interval_covers_the_truth_with_as_much_misclassed_as_is_left_open(
    truth: float, wrong: tuple[float, float, float]
) -> None:
    assert covered(truth, 200, *wrong) >= 0.94


def test_more_misclassed_than_is_left_open_is_found_out() -> None:
    assert covered(0.5, 2000, UNPROVED.classes + 0.3, 0.0) < 0.1
