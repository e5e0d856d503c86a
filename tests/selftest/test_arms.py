"""The arms of the checks, on made-up steps: an error in the service reaches the row that is for it."""

from __future__ import annotations

import pytest

from service.selftest import injected_work
from service.selftest.check import AnyCheck, run_check
from service.selftest.cross_check_widths import INTERCEPT
from service.selftest.floors import LADDER, WIDTHS_CHECK
from service.selftest.injected_work import ELEMENTS, HOST, KERNEL, TIMES_LONGER, host_cases, kernel_cases
from service.step.callables import InjectedWork
from tests.selftest.made_variants import MadeUpVariants, MadeUpWork, made_up_sample

PER_ELEMENT = 1e-7


@pytest.fixture(autouse=True)
def made_up_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        injected_work, "kernel_work", lambda device, elements: MadeUpWork(elements * PER_ELEMENT)
    )
    monkeypatch.setattr(injected_work, "host_work", MadeUpWork(1e-3))
    monkeypatch.setattr(injected_work, "step_sample", made_up_sample)
    monkeypatch.setattr(injected_work, "floor_sample", made_up_sample)


def verdicts(check: AnyCheck, variants: MadeUpVariants) -> dict[str, str]:
    return {row.name: row.verdict for row in run_check("x", check, variants, lambda text: None)}


@pytest.mark.parametrize("check", [LADDER, WIDTHS_CHECK, INTERCEPT, KERNEL, HOST])
def test_honest_steps_pass(check: AnyCheck) -> None:
    assert set(verdicts(check, MadeUpVariants()).values()) == {"pass"}


def test_a_rung_that_removes_nothing_fails_its_row_of_the_ladder() -> None:
    def error(seconds: float, mode: str, **step: object) -> float:
        return seconds * 1.3 if mode == "inference_mode" else seconds

    found = verdicts(LADDER, MadeUpVariants(error))
    assert found["floor of no_grad over inference_mode"] == "fail"
    assert found["floor of eager over no_grad"] == "pass"


def test_kernels_of_a_twin_that_grow_with_its_width_fail_the_widths() -> None:
    def error(seconds: float, width: int, **step: object) -> float:
        return seconds + 1e-5 * width

    assert "fail" in verdicts(WIDTHS_CHECK, MadeUpVariants(error)).values()


def test_a_floor_with_warm_caches_fails_the_intercept() -> None:
    def error(seconds: float, hollow: bool, **step: object) -> float:
        return seconds * 0.6 if hollow else seconds

    assert set(verdicts(INTERCEPT, MadeUpVariants(error)).values()) == {"fail"}


def test_either_length_of_a_kernel_has_a_hollow_counterpart_of_its_own() -> None:
    cases = kernel_cases(MadeUpVariants(), "eager")  # type: ignore[arg-type]
    assert cases.plain_twin is not cases.more_twin
    hollow = [twin.injected.kernel for twin in (cases.plain_twin, cases.more_twin)]  # type: ignore[attr-defined]
    assert hollow == [MadeUpWork(PER_ELEMENT)] * 2
    assert cases.work == MadeUpWork(PER_ELEMENT * ELEMENTS * (TIMES_LONGER - 1))
    assert cases.hollow_work is None


def test_a_twin_that_takes_in_the_longer_kernel_fails_the_row_that_dispatch_does_not_move() -> None:
    twins: list[str] = []

    def error(seconds: float, mode: str, hollow: bool, **step: object) -> float:
        twins.extend([mode] * hollow)
        return seconds + 2e-4 if hollow and twins.count(mode) == 2 else seconds

    found = verdicts(KERNEL, MadeUpVariants(error))
    assert found["a kernel 8 times longer: dispatch, eager"] == "fail"
    assert found["a kernel 8 times longer: kernel, eager"] == "fail"


def test_host_work_is_a_fixed_amount_in_both_arms_and_its_length_is_measured() -> None:
    added = [InjectedWork(kernel=MadeUpWork(1e-3))]
    cases = host_cases(MadeUpVariants(), "eager")  # type: ignore[arg-type]
    assert [case.injected for case in (cases.more, cases.more_twin)] == added * 2  # type: ignore[attr-defined]
    assert [case.injected for case in (cases.plain, cases.plain_twin)] == [None] * 2  # type: ignore[attr-defined]
    assert cases.more.injected.host_seconds == 0.0  # type: ignore[attr-defined]
    assert cases.work == cases.hollow_work == MadeUpWork(1e-3)


def test_a_twin_that_leaves_the_added_host_work_out_fails_both_rows() -> None:
    def error(seconds: float, injected: InjectedWork | None, hollow: bool, **step: object) -> float:
        return seconds - 1e-3 if hollow and injected is not None else seconds

    assert set(verdicts(HOST, MadeUpVariants(error)).values()) == {"fail"}


def test_host_work_that_stretches_the_kernels_beside_it_fails_the_row_of_the_kernel() -> None:
    def error(seconds: float, injected: InjectedWork | None, hollow: bool, **step: object) -> float:
        return seconds + 3e-4 if not hollow and injected is not None else seconds

    found = verdicts(HOST, MadeUpVariants(error))
    assert found["more host work per step: kernel, eager"] == "fail"
    assert found["more host work per step: dispatch, eager"] == "pass"
