"""Every row of every check fails for the error that it is for, and passes without it."""

from __future__ import annotations

import pytest

from service.measure.symbols import RULES, side_of
from service.proof import over_http, worker
from service.proof.rows import Check
from service.proof.runner import ALL_CHECKS
from tests.measure.test_symbols import HOST_SAMPLES, KERNEL_SAMPLES
from tests.proof.samples import (
    CODE,
    FAILURES,
    HONEST,
    Code,
    Failure,
    injected,
    unclassified,
    without,
)

CHECKS: dict[str, Check] = {**worker.CHECKS, **over_http.CHECKS}
CASES = [(name, failure) for name, failures in FAILURES.items() for failure in failures]


def test_every_check_has_samples_that_fail_it_and_samples_that_pass() -> None:
    assert list(CHECKS) == list(ALL_CHECKS)
    assert FAILURES.keys() == set(ALL_CHECKS)
    assert HONEST.keys() == set(ALL_CHECKS)


@pytest.mark.parametrize("name", ALL_CHECKS)
def test_honest_samples_pass_every_row(name: str) -> None:
    rows = CHECKS[name].judge(HONEST[name])
    assert rows
    assert {row.name: row.verdict for row in rows if row.verdict != "pass"} == {}


@pytest.mark.parametrize(("name", "failure"), CASES, ids=[f"{name}: {f.error}" for name, f in CASES])
def test_the_rows_that_an_error_concerns_fail_and_the_others_do_not(name: str, failure: Failure) -> None:
    verdicts = {row.name: row.verdict for row in CHECKS[name].judge(failure.found)}
    concerned = {row for row in verdicts if row.startswith(failure.rows)}
    assert concerned
    assert {row: verdicts[row] for row in concerned} == dict.fromkeys(concerned, "fail")
    assert all(verdicts[row] == "pass" for row in verdicts.keys() - concerned)


@pytest.mark.parametrize("name", ALL_CHECKS)
def test_no_row_is_left_that_no_error_fails(name: str) -> None:
    failed = {
        row.name
        for failure in FAILURES[name]
        for row in CHECKS[name].judge(failure.found)
        if row.verdict == "fail"
    }
    assert {row.name for row in CHECKS[name].judge(HONEST[name])} <= failed


@pytest.mark.parametrize("name", ALL_CHECKS)
def test_the_rows_of_a_machine_that_cannot_measure_are_rows_that_one_that_can_has(name: str) -> None:
    names = [row.name for row in CHECKS[name].judge(HONEST[name])]
    generic = [claimed.name for claimed in CHECKS[name].properties]
    assert all(any(row.startswith(start) for row in names) for start in generic)


SYSTEM = ("clear_page_erms", "[kernel.kallsyms]")
KIND = {"kernel": "sgemm", "host": "Python"}


@pytest.mark.parametrize("removed", [rule.name for rule in RULES])
def test_without_any_one_rule_some_row_about_the_classes_fails(removed: str) -> None:
    """Where a kind of injected work, and a tenth of each step, are in code that this rule alone knows."""
    sides = {code: side_of(*code) for code in (*KERNEL_SAMPLES, *HOST_SAMPLES, SYSTEM)}
    with without(removed):
        code = next(code for code, side in sides.items() if side_of(*code) != side)
        assert rows_that_fail(code, sides[code])
    assert not rows_that_fail(code, sides[code])


def rows_that_fail(code: Code, side: str) -> list[str]:
    injected_there = CODE if side == "system" else CODE | {KIND[side]: code}
    rows = CHECKS["injected"].judge(injected(code=injected_there))
    rows += CHECKS["unclassified"].judge(unclassified(code))
    return [row.name for row in rows if row.verdict == "fail"]
