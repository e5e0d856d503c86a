"""Classes of the index are named only where its whole interval allows, and the crossover has one too."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.statistics.boundedness import (
    bound,
    bound_in_words,
    bounds_within,
    crossover,
    crossover_span,
    device_bound_index,
)
from service.statistics.intervals import Interval

shares = st.floats(0, 1)


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


@given(shares, shares)
def test_the_class_of_the_value_is_always_among_those_of_the_interval(first: float, second: float) -> None:
    found = index(*sorted((first, second)))
    assert bound(found.value) in bounds_within(found)


def test_a_crossover_is_earliest_at_the_high_ends_and_latest_at_the_low_ends() -> None:
    span = crossover_span({1: index(0.2, 0.4), 4: index(0.4, 0.6), 16: index(0.6, 0.8)})
    assert (span.typical.where, span.typical.batch) == ("at", pytest.approx(4))
    assert span.earliest.batch == pytest.approx(2)
    assert span.latest.batch == pytest.approx(8)


def test_the_end_of_a_crossover_outside_of_what_was_measured_says_so() -> None:
    span = crossover_span({1: index(0.3, 0.55), 4: index(0.45, 0.7)})
    assert (span.typical.where, span.earliest.where, span.latest.where) == ("at", "below", "above")


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


def test_nothing_measured_has_no_crossover() -> None:
    assert crossover_span({}).typical.where == "unknown"


def test_the_index_is_the_kernels_share_of_both_and_unknown_without_either() -> None:
    assert device_bound_index(3.0, 1.0) == 0.75
    assert device_bound_index(0.0, 2.0) == 0.0
    assert device_bound_index(0.25, 0.25) == 0.5
    assert [device_bound_index(*one) for one in ((None, 1.0), (1.0, None), (None, None), (0.0, 0.0))] == [
        None
    ] * 4


def test_an_interval_beyond_the_range_of_an_index_has_the_classes_within_it() -> None:
    assert bounds_within(Interval(0.1, -0.5, 0.15, 8)) == ("launch-bound",)
    assert bounds_within(Interval(0.9, 0.6, 1.5, 8)) == ("kernel-bound",)


def test_an_index_of_exactly_a_half_is_the_crossover_itself() -> None:
    found = crossover({16: 0.8, 4: 0.5, 1: 0.2})
    assert (found.where, found.batch) == ("at", pytest.approx(4))
    whole = crossover({1: 0.5, 4: 0.6})
    assert (whole.where, whole.batch) == ("below", 1.0)
    last = crossover({1: 0.4, 8: 0.5})
    assert (last.where, last.batch) == ("at", pytest.approx(8))


def test_outside_of_what_was_measured_the_nearest_batch_is_named() -> None:
    below, above = crossover({4: 0.7, 16: 0.9}), crossover({16: 0.4, 4: 0.1})
    assert (below.where, below.batch) == ("below", 4.0)
    assert (above.where, above.batch) == ("above", 16.0)


def test_the_earliest_crossover_is_the_first_that_the_high_ends_reach_in_any_order_of_batches() -> None:
    span = crossover_span({16: index(0.3, 0.45), 4: index(0.4, 0.6), 1: index(0.2, 0.4)})
    assert (span.earliest.where, span.earliest.batch) == ("at", pytest.approx(2))
    assert (span.latest.where, span.latest.batch) == ("above", 16.0)
