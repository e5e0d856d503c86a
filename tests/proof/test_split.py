"""The checks of the split: which steps they sample, when, and what they say where they cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from service.measure.cpu_sampler import SAMPLES_PER_SECOND, Place, SampledSteps
from service.proof import classes, split
from service.proof.classes import INJECTED, INTO, KINDS, LONG, SHORT, Injected, Kind, Slot
from service.proof.rows import AnyCheck, NotMeasurableError, run_check
from service.proof.split import (
    BACKGROUND,
    PLAIN,
    PLAIN_KERNELS,
    RATES,
    SAMPLING_RATE,
    UNCLASSIFIED,
    ServedStep,
    beyond_none,
    busy_for,
    judge_plain,
    judge_unclassified,
    measure_plain,
    measure_rates,
    measure_unclassified,
)
from service.records import PHASES, SampleCounts
from tests.proof.made_variants import MadeUpCase, MadeUpVariants
from tests.proof.samples import KERNEL_SECONDS, LADDER

SPLIT_CHECKS = [INJECTED, SAMPLING_RATE, PLAIN_KERNELS, UNCLASSIFIED, BACKGROUND]
Beside = Callable[[], object] | None


def quiet(text: str) -> None:
    """No progress."""


def of_share(kernel: float, seconds: float = 1e-3, slowed: float = 1.0) -> SampledSteps:
    counts = SampleCounts(kernel=round(1e6 * kernel), host=round(1e6 * (1 - kernel)))
    return SampledSteps(counts, seconds, [slowed * seconds] * 2)


@pytest.mark.parametrize("check", SPLIT_CHECKS)
def test_where_the_thread_cannot_be_sampled_the_rows_say_why(check: AnyCheck) -> None:
    rows = run_check("x", check, MadeUpVariants(refused="raise `ulimit -i`"), quiet)
    assert {(row.verdict, row.note) for row in rows} == {("not measurable here", "raise `ulimit -i`")}


@pytest.mark.parametrize("check", SPLIT_CHECKS)
def test_where_dispatch_is_measured_there_is_nothing_to_check(check: AnyCheck) -> None:
    rows = run_check("x", check, MadeUpVariants(device="cuda"), quiet)
    assert {(row.verdict, row.note) for row in rows} == {
        ("not measurable here", "on CUDA dispatch is measured")
    }


def test_the_rate_of_a_sampler_is_what_it_was_after_steps_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def sample(sampler: Any, *_: object) -> SampledSteps:
        rates.append(sampler.samples_per_second)
        return of_share(0.5)

    monkeypatch.setattr(split, "sample_steps", sample)
    case: Any = SimpleNamespace(step=print, arguments=(), phase="decode", mode="eager")
    sampler: Any = SimpleNamespace(samples_per_second=SAMPLES_PER_SECOND)
    split.sampled(sampler, case, 0.1, samples_per_second=251)
    assert (rates, sampler.samples_per_second) == ([251], SAMPLES_PER_SECOND)


def test_steps_without_a_sample_cannot_be_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "sample_steps", lambda *_: None)
    case: Any = SimpleNamespace(step=print, arguments=(), phase="decode", mode="eager")
    with pytest.raises(NotMeasurableError, match="no step of eager was sampled"):
        split.sampled(SimpleNamespace(), case, 0.1)  # type: ignore[arg-type]


# Injected work


class Units:
    """Work that only says how much of it there is."""

    def __init__(self, units: int) -> None:
        self.units = units

    def __call__(self) -> None:
        """Nothing."""


def test_of_the_work_one_arm_has_a_short_piece_inside_and_the_rest_beside_and_the_other_all_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = set()

    def sample(
        sampler: object, case: MadeUpCase, slot: Slot, inside: Units, beside: Units | None
    ) -> Injected:
        assert case.injected is slot
        seen.add((case.named.mode, inside.units, beside.units if beside else 0))
        kernel = 1000 * (inside.units + 10)
        return Injected(SampleCounts(kernel=kernel, host=5000), (kernel + 5000) / 1e6, inside.units / 1e3)

    monkeypatch.setattr(classes, "step_sample", sample)
    monkeypatch.setattr(classes, "KINDS", (Kind("a", "kernel", lambda units, fuse: Units(units)),))
    rows = run_check("x", INJECTED, MadeUpVariants(), quiet)
    assert seen == {
        (mode, inside, beside) for mode in INTO for inside, beside in ((SHORT, LONG - SHORT), (LONG, 0))
    }
    assert [(row.verdict, row.value) for row in rows] == [("pass", pytest.approx(1.0))] * len(INTO)


def test_the_work_inside_is_timed_in_the_steps_that_are_sampled_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slot = Slot()

    def sample(*_: object) -> SampledSteps:
        slot.seconds += [9.0, 9.0, 1e-3, 2e-3]  # settling, then sampled
        return SampledSteps(SampleCounts(kernel=3, host=1), 5e-3, [5e-3, 7e-3])

    monkeypatch.setattr(classes, "sampled", sample)
    slot.seconds = [8.0]  # of a round before
    found = classes.step_sample(None, None, slot, Units(1), None)  # type: ignore[arg-type]
    assert (found.step_seconds, found.inside_seconds) == pytest.approx((6e-3, 1.5e-3))
    assert isinstance(slot.work, Units)


def test_work_in_a_slot_is_timed_each_time_that_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0, 2_000_000, 5_000_000, 6_000_000])
    monkeypatch.setattr(classes, "thread_time_ns", lambda: next(clock))
    done: list[int] = []
    slot = Slot()
    slot.work = lambda: done.append(1)
    slot()
    slot()
    assert (slot.seconds, done) == ([2e-3, 1e-3], [1, 1])


def test_a_sample_in_code_of_no_class_has_not_arrived() -> None:
    found = Injected(SampleCounts(kernel=40, host=40, unclassified=20, system=50), 1e-3, 0.0)
    assert (found.seconds_of("kernel"), found.seconds_of("host")) == pytest.approx((4e-4, 4e-4))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_kind_of_work_runs_and_is_fused_where_its_mode_would(kind: Kind) -> None:
    fused: list[Callable[..., Any]] = []

    def fuse(function: Callable[..., Any]) -> Callable[..., Any]:
        fused.append(function)
        return function

    kind.work(1, fuse)()
    assert bool(fused) == (kind.name in ("layer norm", "element-wise chain"))


# The rate, and the background


def test_decode_at_the_smallest_and_the_largest_batch_is_sampled_at_every_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sampled(sampler: object, case: MadeUpCase, seconds: float, samples_per_second: int) -> SampledSteps:
        return of_share(0.5 - 1e-4 * samples_per_second * (case.named.bucket == 16), slowed=1.2)

    monkeypatch.setattr(split, "sampled", sampled)
    found = measure_rates(MadeUpVariants(), quiet)  # type: ignore[arg-type]
    steps = [ServedStep(mode, "decode", bucket) for mode in ("eager", "compiled") for bucket in (1, 16)]
    assert set(found) == {(step, rate) for step in steps for rate in RATES}
    rows = split.judge_rates(found)
    assert {row.name.rpartition(" ")[2]: row.verdict for row in rows} == {"1": "pass", "16": "fail"}
    assert rows[0].note == (
        "0.500, 0.500, 0.500, 0.500 at 251, 499, 997, 1,999; steps take 1.20, 1.20, 1.20, 1.20 times as long"
    )


def test_shares_on_a_line_are_as_far_from_its_end_as_the_line_says() -> None:
    assert beyond_none({rate: 0.5 - 2e-5 * rate for rate in RATES}) == pytest.approx(-2e-5 * 997)
    assert beyond_none(dict.fromkeys(RATES, 0.5)) == pytest.approx(0.0)


def test_a_service_of_one_batch_size_has_one_step_per_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "sampled", lambda *_, **__: of_share(0.5))
    found = measure_rates(MadeUpVariants(batch_sizes=[4]), quiet)  # type: ignore[arg-type]
    assert {step.bucket for step, _ in found} == {4}


# Equal kernels


class Lengths:
    """Steps of 2 ms of kernels per row and their mode's dispatch; eager's prefills have `error` more kernels.

    `worn`: how much longer kernels are per second between the beginnings of two steps.
    """

    def __init__(self, error: float = 0.0, worn: float = 0.0) -> None:
        self.error, self.worn = error, worn

    def kernel(self, step: ServedStep) -> float:
        own = self.error if (step.mode, step.phase) == ("eager", "prefill") else 0.0
        return (KERNEL_SECONDS + own) * step.bucket

    def sampled(self, sampler: object, case: MadeUpCase, seconds: float, beside: Beside) -> SampledSteps:
        kernel, dispatch = self.kernel(case.named), LADDER[case.named.mode]
        kernel += self.worn * (kernel + dispatch + rested(beside))
        return of_share(kernel / (kernel + dispatch), kernel + dispatch)

    def steady_seconds(self, case: MadeUpCase, steps: int) -> float:
        return self.kernel(case.named) + LADDER[case.named.mode]


def rested(beside: Beside) -> float:
    """The seconds that `beside` is busy for."""
    if beside is None:
        return 0.0
    assert isinstance(beside, partial)
    assert beside.func is busy_for
    return float(beside.args[0])


def plain_verdicts(lengths: Lengths, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setattr(split, "sampled", lengths.sampled)
    monkeypatch.setattr(MadeUpCase, "steady_seconds", lambda case, steps: lengths.steady_seconds(case, steps))
    found = measure_plain(MadeUpVariants(), quiet)  # type: ignore[arg-type]
    return {row.name: row.verdict for row in judge_plain(found)}


@pytest.mark.parametrize(("error", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_page_faults_of_eager_s_prefill_fail_the_rows_of_prefill_and_no_other(
    error: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdicts = plain_verdicts(Lengths(error), monkeypatch)
    assert len(verdicts) == 2 * len(PHASES) * 3
    assert {found for name, found in verdicts.items() if "prefill" in name} == {verdict}
    assert {found for name, found in verdicts.items() if "decode" in name} == {"pass"}


def test_steps_of_the_faster_modes_are_as_far_apart_as_eager_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a neighbour does to the caches in that time makes the next kernels longer."""
    assert set(plain_verdicts(Lengths(worn=0.5), monkeypatch).values()) == {"pass"}


def test_no_kernel_time_in_either_mode_is_not_equality() -> None:
    found = {ServedStep(mode, "decode", 1): [of_share(0.0)] * 24 for mode in PLAIN}
    assert [row.verdict for row in judge_plain(found)] == ["fail", "fail"]


def test_without_eager_there_is_nothing_to_compare_with() -> None:
    with pytest.raises(NotMeasurableError, match="compares with eager"):
        measure_plain(MadeUpVariants(["no_grad", "compiled"]), quiet)  # type: ignore[arg-type]


# Code of no class

KNOWN = Place("host", "call", "python")
STRANGER = Place("unclassified", "product", "/opt/lib/libnew.so")


def test_the_step_with_the_largest_share_of_unknown_code_is_told_with_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def places(sampler: object, case: MadeUpCase) -> Counter[Place]:
        return Counter({KNOWN: 200, STRANGER: 4 * (case.named == ("compiled", "prefill", 16))})

    monkeypatch.setattr(split, "_places", places)
    rows = judge_unclassified(measure_unclassified(MadeUpVariants(), quiet))  # type: ignore[arg-type]
    assert [row.verdict for row in rows] == ["pass"] * 3 + ["undecided"]
    assert rows[-1].note == "prefill, batch 16: 20 of 1020, product (20)"


def test_what_the_operating_system_runs_is_no_step_s_code() -> None:
    fault = Place("system", "fault", "[kernel]")
    (row,) = judge_unclassified({ServedStep("eager", "decode", 1): [Counter({KNOWN: 500, fault: 500})]})
    assert (row.verdict, row.note) == ("pass", "decode, batch 1: 0 of 500")
