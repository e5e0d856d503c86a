"""The arms of the checks, on made-up steps: an error in the service reaches the row that is for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.selftest import cross_check_widths, injected_work
from service.selftest.check import AnyCheck, NotMeasurableError, run_check
from service.selftest.cross_check_widths import INTERCEPT
from service.selftest.floors import LADDER, WIDTHS_CHECK
from service.selftest.injected_work import ELEMENTS, HOST, KERNEL, TIMES_LONGER, host_arms, kernel_arms
from service.step.callables import InjectedWork
from tests.selftest.made_variants import MadeUpSampling, MadeUpVariants, MadeUpWork, made_up

PER_ELEMENT = 1e-7


@contextmanager
def made_up_sampler() -> Iterator[object]:
    yield object()


def sample_with(monkeypatch: pytest.MonkeyPatch, sampling: MadeUpSampling) -> None:
    monkeypatch.setattr(injected_work, "step_sample", sampling.step_sample)
    monkeypatch.setattr(cross_check_widths, "sampled", sampling.sampled)


@pytest.fixture(autouse=True)
def made_up_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        injected_work, "kernel_work", lambda device, elements: MadeUpWork(elements * PER_ELEMENT)
    )
    monkeypatch.setattr(injected_work, "host_work", MadeUpWork(host_seconds=3e-3))
    for module in (injected_work, cross_check_widths):
        monkeypatch.setattr(module, "stack_sampler", made_up_sampler)
    sample_with(monkeypatch, MadeUpSampling())


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
        return seconds + 1e-4 * width

    assert "fail" in verdicts(WIDTHS_CHECK, MadeUpVariants(error)).values()


def warm(seconds: float, hollow: bool, **step: object) -> float:
    return seconds * 0.6 if hollow else seconds


def test_two_witnesses_that_both_read_too_little_fail_the_intercept(monkeypatch: pytest.MonkeyPatch) -> None:
    sample_with(monkeypatch, MadeUpSampling(host_as_kernel=0.4))
    assert set(verdicts(INTERCEPT, MadeUpVariants(warm)).values()) == {"fail"}


def test_an_intercept_between_the_witnesses_passes() -> None:
    assert set(verdicts(INTERCEPT, MadeUpVariants(warm)).values()) == {"pass"}


def test_without_stacks_the_intercept_is_compared_with_the_twin_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cross_check_widths, "stack_sampler", forbidden)
    assert set(verdicts(INTERCEPT, MadeUpVariants(warm)).values()) == {"fail"}


@contextmanager
def forbidden() -> Iterator[None]:
    raise NotMeasurableError("the system forbids it: set a sysctl")
    yield


@pytest.mark.parametrize("check", [KERNEL, HOST])
def test_injected_work_cannot_be_split_where_sampling_is_forbidden_and_the_remedy_is_said(
    check: AnyCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injected_work, "stack_sampler", forbidden)
    rows = run_check("x", check, MadeUpVariants(), lambda text: None)
    assert {(row.verdict, row.note) for row in rows} == {
        ("not measurable here", "the system forbids it: set a sysctl")
    }


def test_a_kernel_is_made_longer_by_the_work_that_the_other_arm_does_beside_the_step() -> None:
    arms = kernel_arms(MadeUpVariants(), "eager")  # type: ignore[arg-type]
    assert [arm.case.injected for arm in (arms.plain, arms.more)] == [arms.plain.inside, arms.more.inside]  # type: ignore[attr-defined]
    inside = [made_up(arm.inside).kernel_seconds for arm in (arms.plain, arms.more)]
    assert inside == pytest.approx([PER_ELEMENT * ELEMENTS, PER_ELEMENT * ELEMENTS * TIMES_LONGER])
    assert arms.plain.beside.kernel_seconds == pytest.approx(inside[1] - inside[0])  # type: ignore[union-attr]
    assert arms.more.beside is None


def test_host_work_is_a_fixed_amount_inside_or_beside() -> None:
    arms = host_arms(MadeUpVariants(), "eager")  # type: ignore[arg-type]
    assert [arm.case.injected for arm in (arms.plain, arms.more)] == [None, arms.more.inside]  # type: ignore[attr-defined]
    work = MadeUpWork(host_seconds=3e-3)
    assert (arms.plain.inside, arms.plain.beside) == (None, work)
    assert (made_up(arms.more.inside), arms.more.beside) == (work, None)


def test_element_functions_classed_as_host_fail_both_rows_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample_with(monkeypatch, MadeUpSampling(kernel_as_host=0.2))
    assert set(verdicts(KERNEL, MadeUpVariants()).values()) == {"fail"}


def test_host_functions_classed_as_kernel_fail_both_rows_of_host_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample_with(monkeypatch, MadeUpSampling(host_as_kernel=0.2))
    assert set(verdicts(HOST, MadeUpVariants()).values()) == {"fail"}


def test_added_host_work_that_is_not_done_fails_the_row_of_dispatch_alone() -> None:
    def error(seconds: float, injected: InjectedWork | None, **step: object) -> float:
        return seconds - 3e-3 if injected is not None else seconds

    found = verdicts(HOST, MadeUpVariants(error))
    assert found["more host work per step: dispatch, eager"] == "fail"
    assert found["more host work per step: kernel, eager"] == "pass"
