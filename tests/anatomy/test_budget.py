"""Budget: the verdict follows from three numbers, given values replace measured ones, ratios scale a step."""

from __future__ import annotations

from math import inf

import pytest

from service.anatomy import budget
from service.anatomy.common import StudyError
from service.measure.cases import Bench
from service.measure.step_costs import DispatchSplit
from service.records import SampleCounts
from service.statistics.intervals import Interval
from service.step.buffers import LEAD_STEPS
from tests.anatomy.conftest import printed
from tests.support.small_models import BUCKETS, PLAIN, quiet


@pytest.fixture(scope="module")
def finding(bench: Bench) -> budget.BudgetFinding:
    return budget.draw_budget(bench, budget.BudgetArguments(modes=PLAIN, rounds=6), quiet)


def budget_of_given(ops: float, micros: float, kernel: float) -> budget.Budget:
    quantities = (budget.Quantity(value=value, source="given") for value in (ops, micros, kernel))
    return budget.make_budget("eager", 1, *quantities)


@pytest.mark.parametrize(
    ("ops", "micros", "kernel", "bound", "first_word"),
    [
        (100, 5.0, 50.0, "launch-bound", "yes"),
        (100, 5.0, 300.0, "balanced", "some"),
        (100, 5.0, 500.0, "kernel-bound", "little"),
        (100, 5.0, 0.0, "launch-bound", "yes"),
    ],
)
def test_the_verdict_follows_from_three_numbers(
    ops: int, micros: float, kernel: float, bound: str, first_word: str
) -> None:
    found = budget_of_given(ops, micros, kernel)
    assert found.bound == bound
    assert found.dispatch_microseconds == ops * micros
    assert found.without_dispatch_speedup == (1 / found.device_bound_index if kernel else None)
    assert found.will_compile_help.startswith(first_word)
    assert "of the step is dispatch" in found.will_compile_help
    assert "-bound" not in found.will_compile_help
    assert ("this step has no kernels" in found.will_compile_help) == (kernel == 0)


@pytest.mark.parametrize(("step", "speedup"), [(510.0, 10.2), (None, 10.0), (40.0, 1.0)])
def test_on_cuda_the_gain_is_the_steps_own_and_the_share_is_of_dispatch_and_kernel(
    step: float | None, speedup: float
) -> None:
    quantities = (budget.Quantity(value=value, source="measured") for value in (100, 5.0, 50.0))
    found = budget.make_budget("eager", 1, *quantities, device="cuda", step_microseconds=step)
    assert found.without_dispatch_speedup == pytest.approx(speedup)
    assert "91% of dispatch + kernel, which overlap" in found.will_compile_help
    assert "of the step" not in found.will_compile_help


def test_every_mode_is_measured_at_every_bucket_and_its_parts_add_up(finding: budget.BudgetFinding) -> None:
    measured = [(point.mode, point.batch_size) for point in finding.points]
    assert measured == [(mode, bucket) for mode in PLAIN for bucket in BUCKETS]
    for point in finding.points:
        parts = point.dispatch_seconds.value + point.kernel_seconds.value
        assert parts == pytest.approx(point.step.value)
        for interval in (point.dispatch_seconds, point.kernel_seconds, point.speedup):
            assert interval.low <= interval.value <= interval.high
        assert point.without_dispatch_speedup >= 1
    assert [place.mode for place in finding.crossovers] == PLAIN
    base = finding.points[0]
    assert (base.mode, base.batch_size) == (finding.budget.mode, 1)
    points = {point.mode: point for point in finding.points if point.batch_size == 1}
    assert [gain.mode for gain in finding.gains] == PLAIN[1:]
    for gain in finding.gains:
        assert gain.dispatch_ratio is not None
        scaled = gain.dispatch_ratio.value * base.dispatch_seconds.value
        assert scaled == pytest.approx(points[gain.mode].dispatch_seconds.value)
        assert gain.speedup == points[gain.mode].speedup
    out = printed(finding)
    for word in (*PLAIN, "will compile help", "sampled"):
        assert word in out
    assert "kernel share" in out  # of the budget; columns of tables have a line per word
    assert "-bound" not in out


def test_a_given_value_replaces_the_measured_one(bench: Bench) -> None:
    arguments = budget.BudgetArguments(
        modes=[], kernel_microseconds=1e9, mode="no_grad", batch_size=2, rounds=6
    )
    found = budget.draw_budget(bench, arguments, quiet)
    assert found.points == []
    assert found.budget.kernel_microseconds == budget.Quantity(value=1e9, source="given")
    assert found.budget.ops_per_step.source == "measured"
    assert found.budget.bound == "kernel-bound"
    assert (found.budget.mode, found.budget.batch_size) == ("no_grad", 2)


def test_where_the_thread_cannot_be_sampled_the_reason_is_given(bench: Bench, unsampled: str) -> None:
    with pytest.raises(StudyError, match=unsampled) as refusal:
        budget.draw_budget(bench, budget.BudgetArguments(modes=["eager"], rounds=6), quiet)
    assert refusal.value.type == "unsupported_here"


def test_a_mode_that_does_not_run_is_noted_and_the_others_are_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Bench.case

    def failing(self: Bench, mode: str, bucket: int, phase: str = "decode") -> object:
        if mode == "compiled":
            raise RuntimeError("no compiler")
        return known(self, mode, bucket)

    monkeypatch.setattr(Bench, "case", failing)
    found = budget.draw_budget(bench, budget.BudgetArguments(modes=["eager", "compiled"], rounds=6), quiet)
    assert {point.mode for point in found.points} == {"eager"}
    assert found.notes[0] == "compiled does not run here: RuntimeError: no compiler"


@pytest.mark.parametrize(("switches", "disturbed"), [(0.0, False), (0.05, False), (0.06, True)])
def test_a_disturbed_cell_is_marked_and_named_and_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, switches: float, disturbed: bool
) -> None:
    rounds = 20
    steps = rounds * (LEAD_STEPS + budget.TIMED_STEPS)
    taken = {("eager", 1): 0, ("eager", 2): round(switches * steps)}
    samples = SampleCounts(kernel=200, host=200)
    times = {
        key: budget.StepTimes(
            [1.0] * rounds * budget.TIMED_STEPS, [1.0] * rounds, [1.0] * rounds, count, samples
        )
        for key, count in taken.items()
    }
    monkeypatch.setattr(budget, "time_steps", lambda *_: times)
    found = budget.draw_budget(bench, budget.BudgetArguments(modes=["eager"], batch_sizes=[1, 2]), quiet)
    assert [point.disturbed for point in found.points] == [False, disturbed]
    notes = [note for note in found.notes if note.startswith("disturbed")]
    assert len(notes) == disturbed
    assert all("eager at 2;" in note and "eager at 1" not in note for note in notes)


EAGER: budget.Key = ("eager", 1)
ONE = Interval(1.0, 0.9, 1.1, 9)


def split_of(dispatch: float, kernel: float) -> DispatchSplit:
    return DispatchSplit(
        Interval(dispatch, dispatch * 0.9, dispatch * 1.1, 9),
        Interval(kernel, kernel * 0.9, kernel * 1.1, 11),
        "sampled",
    )


def test_a_gain_is_the_ratio_of_the_parts_and_its_bounds_are_the_worse_ends() -> None:
    def gain_of(own: DispatchSplit, other: DispatchSplit) -> budget.ModeGain:
        splits = {EAGER: own, ("compiled", 1): other}
        times = {
            key: budget.StepTimes(walls=[one.dispatch.value + one.kernel.value] * 6)
            for key, one in splits.items()
        }
        (found,) = budget.mode_gains(EAGER, times, splits, "cpu")
        return found

    gain = gain_of(split_of(900.0, 100.0), split_of(300.0, 50.0))
    assert gain.mode == "compiled"
    assert gain.dispatch_ratio is not None
    ratio = gain.dispatch_ratio
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1 / 3, 270 / 990, 330 / 810))
    assert gain.kernel_ratio is not None
    assert (gain.kernel_ratio.value, gain.kernel_ratio.samples) == (pytest.approx(0.5), 11)
    assert gain.speedup.value == pytest.approx(1000 / 350)
    assert gain_of(split_of(9.0, 0.0), split_of(3.0, 1.0)).kernel_ratio is None
    open_ended = DispatchSplit(ONE, Interval(2.0, -inf, inf, 3), "measured")
    assert gain_of(open_ended, open_ended).kernel_ratio == Interval(1.0, 0.0, inf, 3)
