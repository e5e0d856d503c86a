"""What other modes leave of a step: the ratios are of the measured parts, and scale a step by them."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.anatomy.budget.study import (
    BudgetArguments,
    BudgetFinding,
    Key,
    ModeGain,
    Steps,
    draw_budget,
    mode_gains,
    speedup_with,
    step_of,
    without_dispatch,
)
from service.measure.cases import Bench
from service.measure.split import DispatchSplit
from service.statistics.intervals import Interval
from tests.support.anatomy_bench import PLAIN, quiet, small_bench

EAGER: Key = ("eager", 1)
ONE = Interval(1.0, 0.9, 1.1, 9)
parts = st.floats(0.01, 1e6)
ratios = st.floats(0.01, 10.0)


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with small_bench() as shared:
        yield shared


@pytest.fixture(scope="module")
def finding(bench: Bench) -> BudgetFinding:
    arguments = BudgetArguments(modes=PLAIN, batch_sizes=[1], mode="eager", batch_size=1, rounds=6)
    return draw_budget(bench, arguments, quiet)


def split(dispatch: float, kernel: float) -> DispatchSplit:
    return DispatchSplit(
        Interval(dispatch, dispatch * 0.9, dispatch * 1.1, 9),
        Interval(kernel, kernel * 0.9, kernel * 1.1, 11),
        "sampled",
    )


def gains_of(splits: dict[Key, DispatchSplit]) -> list[ModeGain]:
    walls = {key: [one.dispatch.value + one.kernel.value] * 6 for key, one in splits.items()}
    return mode_gains(EAGER, Steps(walls, walls, {}, {}), splits, "cpu")


def test_a_gain_is_the_ratio_of_the_parts_and_its_bounds_are_the_worse_ends() -> None:
    found = gains_of({EAGER: split(900.0, 100.0), ("compiled", 1): split(300.0, 50.0)})
    (gain,) = found
    assert (gain.mode, gain.compiles, gain.graph_replay) == ("compiled", True, False)
    assert gain.dispatch_ratio is not None
    assert gain.kernel_ratio is not None
    assert gain.dispatch_ratio.value == pytest.approx(1 / 3)
    assert gain.dispatch_ratio.low == pytest.approx(270 / 990)
    assert gain.dispatch_ratio.high == pytest.approx(330 / 810)
    assert gain.kernel_ratio.value == pytest.approx(0.5)
    assert gain.kernel_ratio.samples == 11
    assert gain.speedup.value == pytest.approx(1000 / 350)


def test_gains_are_of_the_budgets_batch_only() -> None:
    splits = {EAGER: split(9.0, 1.0), ("compiled", 4): split(1.0, 1.0), ("no_grad", 1): split(6.0, 1.0)}
    assert [gain.mode for gain in gains_of(splits)] == ["no_grad"]


def test_a_part_that_was_nothing_has_no_ratio() -> None:
    (gain,) = gains_of({EAGER: split(9.0, 0.0), ("compiled", 1): split(3.0, 1.0)})
    assert gain.kernel_ratio is None
    assert gain.dispatch_ratio is not None


def test_a_part_without_an_interval_has_a_ratio_without_ends() -> None:
    open_ended = DispatchSplit(ONE, Interval(2.0, -inf, inf, 3), "measured")
    (gain,) = gains_of({EAGER: open_ended, ("compiled", 1): open_ended})
    assert gain.kernel_ratio == Interval(1.0, 0.0, inf, 3)


def test_without_the_budgets_own_step_there_is_no_gain() -> None:
    assert gains_of({("compiled", 1): split(1.0, 1.0)}) == []


@given(parts, parts, ratios, ratios)
def test_on_a_cpu_the_parts_of_a_step_shrink_one_by_one(
    dispatch: float, kernel: float, of_dispatch: float, of_kernel: float
) -> None:
    found = speedup_with(of_dispatch, of_kernel, dispatch, kernel, "cpu")
    assert found == pytest.approx((dispatch + kernel) / (dispatch * of_dispatch + kernel * of_kernel))


@given(parts, parts)
def test_on_cuda_the_longer_part_is_the_step(dispatch: float, kernel: float) -> None:
    assert step_of(dispatch, kernel, "cuda") == max(dispatch, kernel)
    found = speedup_with(0.0, 1.0, dispatch, kernel, "cuda")
    assert found == pytest.approx(without_dispatch(max(dispatch, kernel), kernel))


def test_a_step_of_which_nothing_is_left_has_no_speedup() -> None:
    assert speedup_with(0.0, 0.0, 1.0, 1.0, "cpu") is None


def test_the_measured_modes_ratios_give_back_their_own_parts(finding: BudgetFinding) -> None:
    points = {point.mode: point for point in finding.points}
    base = points[finding.budget.mode]
    assert [gain.mode for gain in finding.gains] == [mode for mode in PLAIN if mode != base.mode]
    for gain in finding.gains:
        assert gain.dispatch_ratio is not None
        assert gain.dispatch_ratio.value * base.dispatch_seconds.value == pytest.approx(
            points[gain.mode].dispatch_seconds.value
        )
        assert gain.speedup == points[gain.mode].speedup
