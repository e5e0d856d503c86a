"""Which checks run, and what becomes of undecided and broken ones."""

from __future__ import annotations

import pytest

from service.measure.isolation import OffCpuTime
from service.selftest.checks import (
    ENGINE_CHECKS,
    SERVICE_CHECKS,
    choose_checks,
    run_check,
    undecided_where_disturbed,
)
from service.selftest.results import CheckResult, exact_result, interval_result
from service.statistics.intervals import Interval


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 8)


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    assert choose_checks(["twice", "ladder"]) == (["ladder"], ["twice"])
    assert choose_checks(None) == (list(ENGINE_CHECKS), list(SERVICE_CHECKS))
    with pytest.raises(ValueError, match=r"no check 'laddr': try some of ladder, "):
        choose_checks(["laddr"])


def test_an_undecided_row_is_measured_once_more_and_the_others_stay() -> None:
    calls: list[int] = []

    def check() -> list[CheckResult]:
        calls.append(1)
        wide = interval(0.5, 1.5) if len(calls) == 1 else interval(0.9, 1.1)
        return [
            interval_result("wide", "b", wide, least=0.8, most=1.2),
            exact_result("sure", "b", True, float(len(calls)), "s"),
        ]

    wide, sure = run_check("both", check)
    assert len(calls) == 2
    assert (wide.verdict, wide.repeated) == ("pass", True)
    assert (sure.value, sure.repeated) == (1.0, False)


def test_a_failure_on_a_disturbed_core_is_undecided_and_a_pass_stands() -> None:
    rows = [
        interval_result("bad", "b", interval(2, 3), most=1),
        interval_result("good", "b", interval(0, 1), most=1),
        exact_result("sure", "b", False, 1.0, "s"),
    ]
    disturbed = undecided_where_disturbed(rows, 0.2)
    assert [row.verdict for row in disturbed] == ["undecided", "pass", "fail"]
    assert "20%" in disturbed[0].note
    assert undecided_where_disturbed(rows, 0.001) == rows


class BusyCore(OffCpuTime):
    """As if other processes had had the core for these shares of the time, one per run of a check."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self._shares = list(shares)

    def take_share(self) -> float:
        return self._shares.pop(0)


def test_a_check_that_failed_on_a_disturbed_core_runs_once_more() -> None:
    def check() -> list[CheckResult]:
        return [interval_result("bad", "b", interval(2, 3), most=1)]

    (quiet_again,) = run_check("x", check, BusyCore(0.2, 0.0))
    assert (quiet_again.verdict, quiet_again.repeated) == ("fail", True)
    (still_busy,) = run_check("x", check, BusyCore(0.2, 0.2))
    assert (still_busy.verdict, still_busy.repeated) == ("undecided", True)


def test_a_check_that_breaks_is_a_failed_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def check() -> list[CheckResult]:
        raise RuntimeError("no such thing")

    (row,) = run_check("broken", check)
    assert row.verdict == "fail"
    assert "RuntimeError: no such thing" in row.note
    assert "no such thing" in capsys.readouterr().err
