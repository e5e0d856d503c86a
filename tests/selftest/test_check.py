"""Repeated runs, disturbed cores, checks that break or cannot measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.measure.isolation import OffCpuTime
from service.measure.rounds import Log
from service.selftest.check import AnyCheck, Check, NotMeasurableError, run_check, undecided_where_failed
from service.selftest.checks import ALL_CHECKS, ENGINE_CHECKS, SERVICE_CHECKS, choose_checks
from service.selftest.results import CheckResult, exact_result, interval_result
from service.statistics.intervals import Interval, median_interval

STRADDLES = [0.9] * 6 + [1.1] * 6
INSIDE = [0.9] * 40
OUTSIDE = [1.1, 1.2] * 20


def judge(found: dict[str, list[float]]) -> list[CheckResult]:
    return [interval_result("row", "≤ 1", median_interval(found["x"]), most=1.0)]


def check_of(*runs: list[float], judged: Callable[..., list[CheckResult]] = judge) -> AnyCheck:
    """A check whose runs, in turn, measure these samples."""
    left = list(runs)

    def measure(subject: object, log: Log) -> dict[str, list[float]]:
        return {"x": left.pop(0)}

    return Check(measure, judged)


def run(check: AnyCheck, off_cpu: OffCpuTime | None = None) -> list[CheckResult]:
    return run_check("x", check, None, lambda text: None, off_cpu)


class BusyCore(OffCpuTime):
    """As if other processes had had the core for these shares of the time, one per run of a check."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self._shares = list(shares)

    def take_share(self) -> float:
        return self._shares.pop(0)


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    assert choose_checks(["twice", "injected"]) == (["injected"], ["twice"])
    assert choose_checks(None) == (list(ENGINE_CHECKS), list(SERVICE_CHECKS))
    assert [*ENGINE_CHECKS, *SERVICE_CHECKS] == list(ALL_CHECKS)
    with pytest.raises(ValueError, match=r"no check 'injectd': try some of injected, "):
        choose_checks(["injectd"])


@pytest.mark.parametrize(
    ("second", "verdict"), [(INSIDE, "pass"), (OUTSIDE, "fail"), (STRADDLES, "undecided")]
)
def test_an_undecided_row_is_judged_again_over_both_runs_together(second: list[float], verdict: str) -> None:
    (row,) = run(check_of(STRADDLES, second))
    both = median_interval([*STRADDLES, *second])
    assert (row.verdict, row.runs) == (verdict, 2)
    assert (row.value, row.low, row.high) == (both.value, both.low, both.high)


def test_a_second_run_does_not_replace_the_first() -> None:
    (row,) = run(check_of([0.9] * 20 + [1.1] * 22, [0.9] * 6))
    assert row.verdict == "undecided"


def test_a_row_that_was_decided_stays_as_it_was_while_another_is_measured_again() -> None:
    def judged(found: dict[str, list[float]]) -> list[CheckResult]:
        sure = interval_result("sure", "≤ 1", Interval(0.5, 0.4, 0.6, len(found["x"])), most=1.0)
        return [*judge(found), sure]

    row, sure = run(check_of(STRADDLES, INSIDE, judged=judged))
    assert (row.verdict, row.runs) == ("pass", 2)
    assert (sure.verdict, sure.runs) == ("pass", 1)


def test_a_failure_of_disturbed_runs_alone_is_undecided_and_a_pass_stands() -> None:
    rows = [
        interval_result("bad", "b", Interval(2.5, 2, 3, 8), most=1),
        interval_result("good", "b", Interval(0.5, 0, 1, 8), most=1),
        exact_result("sure", "b", False, 1.0, "s"),
    ]
    disturbed = undecided_where_failed(rows, 0.2)
    assert [row.verdict for row in disturbed] == ["undecided", "pass", "fail"]
    assert "20%" in disturbed[0].note
    (row,) = run(check_of(OUTSIDE, OUTSIDE), BusyCore(0.2, 0.2))
    assert (row.verdict, row.runs) == ("undecided", 2)


def test_a_disturbed_run_is_left_out_where_the_other_was_quiet() -> None:
    (row,) = run(check_of(OUTSIDE, INSIDE), BusyCore(0.2, 0.0))
    assert (row.verdict, row.runs) == ("pass", 1)
    (row,) = run(check_of(OUTSIDE, OUTSIDE), BusyCore(0.2, 0.0))
    assert (row.verdict, row.runs) == ("fail", 1)


def test_a_failure_on_a_quiet_core_is_not_measured_again() -> None:
    (row,) = run(check_of(OUTSIDE), BusyCore(0.0))
    assert (row.verdict, row.runs) == ("fail", 1)


def test_what_only_one_of_two_runs_could_measure_is_judged_by_that_one() -> None:
    runs = [{"x": STRADDLES, "first": [1.0]}, {"x": INSIDE, "second": [2.0, 3.0]}]

    def judged(found: dict[str, list[float]]) -> list[CheckResult]:
        others = {name: samples for name, samples in found.items() if name != "x"}
        seen = [exact_result(name, "all", True, sum(samples), "s") for name, samples in others.items()]
        return [*judge(found), *seen]

    row, first = run(Check(lambda subject, log: runs.pop(0), judged))
    assert (row.verdict, row.runs) == ("pass", 2)
    assert (first.verdict, first.value) == ("pass", 1.0)


def test_a_check_that_breaks_is_a_failed_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(found: dict[str, list[float]]) -> list[CheckResult]:
        raise RuntimeError("no such thing")

    (row,) = run(check_of(INSIDE, judged=broken))
    assert row.verdict == "fail"
    assert "RuntimeError: no such thing" in row.note
    assert "no such thing" in capsys.readouterr().err


def test_a_check_that_cannot_measure_here_has_its_rows_with_the_reason() -> None:
    def measure(subject: object, log: Log) -> dict[str, list[float]]:
        raise NotMeasurableError("no GPU")

    found = run(Check(measure, judge, (("row", "≤ 1"), ("other", "all"))))
    assert [(row.name, row.verdict, row.note) for row in found] == [
        ("row", "not measurable here", "no GPU"),
        ("other", "not measurable here", "no GPU"),
    ]
