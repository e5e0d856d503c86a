"""The split by samples, the kernel share with its interval and classes, the crossover, and the roofline."""

from __future__ import annotations

from random import Random

import pytest
from scipy import stats

from service.records import SampleCounts
from service.statistics.boundedness import (
    UNPROVED,
    DispatchShare,
    LeftOpen,
    Split,
    bound_in_words,
    crossover,
    crossover_span,
    decode_bytes,
    device_bound_index,
    dispatch_share,
    index_interval,
    roofline,
    widened,
)
from service.statistics.intervals import Interval

SIZES = {"weights": 1000.0, "cache_per_position": 8.0, "activations_per_row": 50.0}


@pytest.mark.parametrize(
    ("kernel", "host", "unclassified"),
    [(60, 40, 0), (60, 40, 15), (3, 997, 2), (0, 30, 0), (30, 0, 0), (2, 2, 1)],
)
def test_a_share_of_samples_has_wilsons_interval(kernel: int, host: int, unclassified: int) -> None:
    def wilson(found: int, samples: int) -> tuple[float, float]:
        interval = stats.binomtest(found, samples).proportion_ci(0.95, "wilson")
        return interval.low, interval.high

    everything = kernel + host + unclassified
    low, high = wilson(host, everything)[0], wilson(host + unclassified, everything)[1]
    share = dispatch_share(SampleCounts(kernel=kernel, host=host, unclassified=unclassified))
    assert (share.low, share.high) == pytest.approx(widened(low, high, UNPROVED), abs=1e-6)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        (SampleCounts(kernel=60, host=20, unclassified=20), True),
        (SampleCounts(kernel=60, host=20, unclassified=21), False),
        (SampleCounts(kernel=60, host=20, unclassified=20, system=100), True),
        (SampleCounts(kernel=60, host=20, unclassified=20, system=101), False),
        (SampleCounts(), False),
    ],
)
def test_no_share_is_told_of_steps_that_mostly_wait_or_run_code_of_no_class(
    counts: SampleCounts, told: bool
) -> None:
    assert (dispatch_share(counts) is not None) == told


def test_no_share_leaves_its_range() -> None:
    assert widened(0.05, 0.95, LeftOpen(0.1, 0.0)) == (0.0, 1.0)


def test_each_part_may_hold_some_of_the_other_however_many_samples_there_are() -> None:
    low, high = widened(0.4, 0.4)
    classes, rate = UNPROVED
    assert low * (1 - classes) + classes + rate == pytest.approx(0.4)  # dispatch, and some of the kernels
    assert high * (1 - classes) - rate == pytest.approx(0.4)  # a part of the dispatch
    assert widened(0.4, 0.4, LeftOpen(1.0, 0.0)) == (0.0, 1.0)
    many = dispatch_share(SampleCounts(kernel=6_000_000, host=4_000_000))
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
        found = dispatch_share(SampleCounts(kernel=samples - host, host=host))
        held += isinstance(found, DispatchShare) and found.low <= truth <= found.high
    return held / 1000


@pytest.mark.parametrize("truth", [0.05, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(
    "wrong",
    [(0.0, 0.0, 0.0), (UNPROVED.classes, 0.0, -UNPROVED.rate), (0.0, UNPROVED.classes, UNPROVED.rate)],
)
def test_the_interval_covers_the_truth_with_as_much_misclassed_as_is_left_open(
    truth: float, wrong: tuple[float, float, float]
) -> None:
    assert covered(truth, 200, *wrong) >= 0.94


def split(dispatch: float, kernel: float, reach: float = 0.0) -> Split:
    return Split(dispatch, kernel, dispatch * (1 - reach), dispatch * (1 + reach))


def test_without_scatter_the_ends_are_the_index_at_the_ends_of_the_dispatch() -> None:
    found = index_interval([split(0.4, 0.6, reach=0.25)] * 8)
    assert (found.value, found.low, found.high) == pytest.approx((0.6, 0.5, 0.7))


def test_the_index_is_of_sums_one_round_leaves_it_open_and_no_time_leaves_none() -> None:
    found, alone = index_interval([split(1.0, 3.0), split(1.0, 1.0)]), index_interval([split(0.4, 0.6)])
    assert found.value == pytest.approx(4 / 6)
    assert (alone.low, alone.high) == (0.0, 1.0)
    assert index_interval([]) is index_interval([split(0.0, 0.0)]) is None


def index(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 8)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.05, 0.19, "launch-bound"),
        (0.2, 0.49, "balanced"),
        (0.5, 0.9, "kernel-bound"),
        (0.15, 0.2, "undecided between launch-bound and balanced"),
        (0.49, 0.5, "undecided between balanced and kernel-bound"),
        (0.0, 1.0, "undecided between launch-bound, balanced and kernel-bound"),
    ],
)
def test_a_class_is_named_only_where_the_whole_interval_lies_in_it(
    low: float, high: float, words: str
) -> None:
    assert bound_in_words(index(low, high)) == words


def test_the_index_is_the_kernels_share_of_both_and_unknown_without_either() -> None:
    assert device_bound_index(3.0, 1.0) == 0.75
    assert device_bound_index(0.0, 2.0) == 0.0
    assert device_bound_index(0.25, 0.25) == 0.5
    assert [device_bound_index(*one) for one in ((None, 1.0), (1.0, None), (None, None), (0.0, 0.0))] == [
        None
    ] * 4


def test_a_crossover_is_earliest_at_the_high_ends_and_latest_at_the_low_ends() -> None:
    span = crossover_span({1: index(0.2, 0.4), 4: index(0.4, 0.6), 16: index(0.6, 0.8)})
    assert (span.typical.where, span.typical.batch) == ("at", pytest.approx(4))
    assert span.earliest.batch == pytest.approx(2)
    assert span.latest.batch == pytest.approx(8)
    outside = crossover_span({1: index(0.3, 0.55), 4: index(0.45, 0.7)})
    assert (outside.typical.where, outside.earliest.where, outside.latest.where) == ("at", "below", "above")


@pytest.mark.parametrize("shares", [(0.45, 0.55, 0.4, 0.45), (0.55, 0.3, 0.3, 0.3), (0.6, 0.3, 0.6, 0.7)])
def test_kernels_that_take_longer_at_some_batch_and_shorter_at_a_larger_one_have_several_crossovers(
    shares: tuple[float, ...],
) -> None:
    found = crossover(dict(zip((1, 2, 4, 16), shares, strict=True)))
    assert (found.where, found.batch) == ("several", None)


def test_the_interval_of_a_crossover_reaches_from_the_first_to_the_last_that_the_indices_allow() -> None:
    span = crossover_span(
        {1: index(0.3, 0.4), 2: index(0.45, 0.65), 4: index(0.4, 0.55), 16: index(0.6, 0.8)}
    )
    assert span.typical.where == "several"
    assert 1 < (span.earliest.batch or 0) < 2
    assert 4 < (span.latest.batch or 0) < 16


@pytest.mark.parametrize(
    ("shares", "where", "batch"),
    [
        ({16: 0.8, 4: 0.5, 1: 0.2}, "at", 4),
        ({1: 0.5, 4: 0.6}, "below", 1),
        ({1: 0.4, 8: 0.5}, "at", 8),
        ({4: 0.7, 16: 0.9}, "below", 4),
        ({16: 0.4, 4: 0.1}, "above", 16),
    ],
)
def test_a_half_is_the_crossover_itself_and_outside_the_nearest_batch_is_named(
    shares: dict[int, float], where: str, batch: float
) -> None:
    found = crossover(shares)
    assert (found.where, found.batch) == (where, pytest.approx(batch))
    assert crossover_span({}).typical.where == "unknown"


def test_the_share_is_what_the_kernels_attain_of_the_bandwidth() -> None:
    found = roofline(1e6, Interval(1e-3, 0.8e-3, 2e-3, 9), 4e9)
    assert found.attained.value == pytest.approx(1e9)
    ends = (found.share.value, found.share.low, found.share.high)
    assert ends == pytest.approx((0.25, 0.125, 0.3125))
    assert roofline(1e6, Interval(0.0, 0.0, 1e-3, 9), 4e9) is None
    reaching_nothing = roofline(1e6, Interval(1e-3, 0.0, 2e-3, 9), 4e9)
    assert reaching_nothing.share.high == float("inf")


def test_weights_are_read_once_and_the_rest_per_row() -> None:
    assert decode_bytes(SIZES, rows=1, positions=10) == 1000 + 80 + 50
    assert decode_bytes(SIZES, rows=4, positions=10) == 1000 + 4 * (80 + 50)
