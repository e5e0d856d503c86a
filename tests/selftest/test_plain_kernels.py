"""Equal kernels in the plain modes: which steps are compared, and what a floor above its step amounts to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest

from service.selftest import plain_kernels
from service.selftest.check import NotMeasurableError
from service.selftest.places import PHASES, Place
from service.selftest.plain_kernels import (
    PLAIN,
    Found,
    busy_for,
    by_floors,
    by_stacks,
    judge_plain,
    measure_plain,
)
from service.step.native.stacks import SampledSteps
from tests.selftest.made_variants import MadeUpVariants
from tests.selftest.samples import LADDER, rounds

KERNEL_SECONDS = 2e-3
BUCKETS = [1, 16]
WORN_PER_SECOND = 0.5
"""Of how much longer kernels take, per second between the beginnings of two steps."""


class MadeUpBench:
    """Steps of `kernel` seconds and their mode's dispatch; `error` is added to eager's prefills' kernels."""

    settings = SimpleNamespace(batch_sizes=BUCKETS)

    def __init__(self, error: float = 0.0) -> None:
        self._error = error

    def case(self, mode: str, bucket: int, phase: str) -> MadeUpBench.Step:
        added = self._error if (mode, phase) == ("eager", "prefill") else 0.0
        return self.Step(mode, phase, (KERNEL_SECONDS + added) * bucket)

    class Step:
        def __init__(self, mode: str, phase: str, kernel: float) -> None:
            self.mode = mode
            self.phase = phase
            self.kernel = kernel
            self.seconds = kernel + LADDER[mode]

        def steady_seconds(self, steps: int, beside: Callable[[], object] | None = None) -> float:
            return self.seconds


def sampled(
    sampler: object, step: MadeUpBench.Step, seconds: float, beside: Callable[[], object] | None
) -> SampledSteps:
    return SampledSteps(step.kernel / step.seconds, 100, step.seconds)


def floors_of(bench: object, mode: str) -> dict[Place, float]:
    return {Place(mode, phase, bucket): LADDER[mode] for phase in PHASES for bucket in BUCKETS}


def measured(by: str, error: float, monkeypatch: pytest.MonkeyPatch) -> Found:
    monkeypatch.setattr(plain_kernels, "sampled", sampled)
    monkeypatch.setattr(plain_kernels, "floors_of", floors_of)
    bench: MadeUpBench = MadeUpBench(error)
    if by == "stacks":
        return by_stacks(bench, PLAIN, None, lambda text: None)  # type: ignore[arg-type]
    return by_floors(bench, PLAIN, lambda text: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", ["stacks", "floors"])
@pytest.mark.parametrize(("error", "verdict"), [(0.0, "pass"), (1e-3, "fail")])
def test_page_faults_of_eager_s_prefill_fail_the_rows_of_prefill_and_no_other(
    by: str, error: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = judge_plain(measured(by, error, monkeypatch))
    verdicts = {row.name: row.verdict for row in rows}
    assert len(verdicts) == 2 * len(PHASES) * len(BUCKETS)
    assert {found for name, found in verdicts.items() if "prefill" in name} == {verdict}
    assert {found for name, found in verdicts.items() if "decode" in name} == {"pass"}
    assert all(row.note.endswith(f"by {by}") for row in rows)


def test_steps_of_the_faster_modes_are_as_far_apart_as_eager_s(monkeypatch: pytest.MonkeyPatch) -> None:
    between: dict[tuple[str, str], set[float]] = defaultdict(set)

    def step_after(step: MadeUpBench.Step, beside: Callable[[], object] | None) -> None:
        # What a neighbour does to the caches in that time makes the next kernels longer.
        step.kernel = step.seconds - LADDER[step.mode] + WORN_PER_SECOND * (step.seconds + rested(beside))
        between[step.mode, step.phase].add(round(step.seconds + rested(beside), 9))

    def sampled_later(
        sampler: object, step: MadeUpBench.Step, seconds: float, beside: Callable[[], object] | None
    ) -> SampledSteps:
        step_after(step, beside)
        return SampledSteps(step.kernel / step.seconds, 100, step.seconds)

    monkeypatch.setattr(plain_kernels, "sampled", sampled_later)
    bench: Any = MadeUpBench()
    rows = judge_plain(by_stacks(bench, PLAIN, None, lambda text: None))  # type: ignore[arg-type]
    assert between["eager", "decode"] == between["no_grad", "decode"] == between["inference_mode", "decode"]
    assert {row.verdict for row in rows} == {"pass"}
    assert [row.value for row in rows] == [pytest.approx(1.0)] * len(rows)


def rested(beside: Callable[[], object] | None) -> float:
    """The seconds that `beside` is busy for."""
    if beside is None:
        return 0.0
    assert isinstance(beside, partial)
    assert beside.func is busy_for
    return float(beside.args[0])


def test_a_rest_lasts_as_long_as_it_says_and_never_less_than_nothing() -> None:
    began = perf_counter()
    busy_for(2e-3)
    assert perf_counter() - began >= 2e-3
    busy_for(-1.0)


def test_no_kernel_time_in_either_mode_is_not_equality() -> None:
    found: Found = {(Place(mode, "decode", 1), "stacks"): [0.0] * len(rounds(1.0)) for mode in PLAIN}
    assert [row.verdict for row in judge_plain(found)] == ["fail", "fail"]


def test_without_eager_there_is_nothing_to_compare_with() -> None:
    variants = MadeUpVariants()
    variants.modes = ["no_grad", "compiled"]
    with pytest.raises(NotMeasurableError, match="compares with eager"):
        measure_plain(variants, lambda text: None)  # type: ignore[arg-type]
