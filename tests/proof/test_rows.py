"""Verdicts by bounds, repeated runs, disturbed cores, checks that break or cannot measure."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from service.measure.rounds import Log, OffCpuTime
from service.proof.rows import (
    Check,
    NotMeasurableError,
    Property,
    Row,
    count_row,
    run_check,
    share_interval,
)
from service.statistics.intervals import Interval, median_interval

WITHIN_ONE = Property("row", "≤ 1", most=1.0)
STRADDLES = [0.9] * 6 + [1.1] * 6
INSIDE = [0.9] * 40
OUTSIDE = [1.1, 1.2] * 20


def judge(found: dict[str, list[float]]) -> list[Row]:
    return [WITHIN_ONE.within(median_interval(found["x"]))]


def check_of(*runs: list[float], judged: Callable[..., list[Row]] = judge) -> Check:
    """A check whose runs, in turn, measure these samples."""
    left = list(runs)

    def measure(subject: object, log: Log) -> dict[str, list[float]]:
        return {"x": left.pop(0)}

    return Check(measure, judged)


def run(check: Check, off_cpu: OffCpuTime | None = None) -> list[Row]:
    return run_check("x", check, None, lambda text: None, off_cpu)[0]


class BusyCore(OffCpuTime):
    """As if other processes had had the core for these shares of the time, one per run of a check."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self._shares = list(shares)

    def take_share(self) -> float:
        return self._shares.pop(0)


@pytest.mark.parametrize(
    ("second", "verdict"), [(INSIDE, "pass"), (OUTSIDE, "fail"), (STRADDLES, "undecided")]
)
def test_an_undecided_row_is_judged_again_over_both_runs_together(second: list[float], verdict: str) -> None:
    (row,) = run(check_of(STRADDLES, second))
    both = median_interval([*STRADDLES, *second])
    assert (row.verdict, row.runs) == (verdict, 2)
    assert (row.value, row.low, row.high) == (both.value, both.low, both.high)


def test_a_failure_of_disturbed_runs_alone_is_undecided_and_a_pass_stands() -> None:
    def judged(found: dict[str, list[float]]) -> list[Row]:
        claimed = Property("a row", "b", most=1)
        rows = [claimed.within(Interval(2.5, 2, 3, 8), ": bad"), claimed.within(Interval(0.5, 0, 1, 8))]
        return [*rows, claimed.exactly(2.0, ": sure")]

    rows = run(check_of(OUTSIDE, OUTSIDE, judged=judged), BusyCore(0.2, 0.2))
    assert [(row.verdict, row.runs) for row in rows] == [("undecided", 2), ("pass", 1), ("fail", 1)]
    assert "20%" in rows[0].note


def test_a_disturbed_run_is_left_out_where_the_other_was_quiet() -> None:
    (row,) = run(check_of(OUTSIDE, INSIDE), BusyCore(0.2, 0.0))
    assert (row.verdict, row.runs) == ("pass", 1)
    (row,) = run(check_of(OUTSIDE, OUTSIDE), BusyCore(0.2, 0.0))
    assert (row.verdict, row.runs) == ("fail", 1)


def test_a_check_that_breaks_is_a_failed_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(found: dict[str, list[float]]) -> list[Row]:
        raise RuntimeError("no such thing")

    (row,) = run(check_of(INSIDE, judged=broken))
    assert row.verdict == "fail"
    assert "RuntimeError: no such thing" in row.note
    assert "no such thing" in capsys.readouterr().err


def test_a_check_that_cannot_measure_here_has_its_rows_with_the_reason() -> None:
    def measure(subject: object, log: Log) -> dict[str, list[float]]:
        raise NotMeasurableError("no GPU")

    found = run(Check(measure, judge, (WITHIN_ONE, Property("other", "all"))))
    assert [(row.name, row.verdict, row.note) for row in found] == [
        ("row", "not measurable here", "no GPU"),
        ("other", "not measurable here", "no GPU"),
    ]


CLAIMED = Property("a share", "within 25 %", 0.75, 1.25)


def interval(low: float, high: float) -> Interval:
    return Interval((low + high) / 2, low, high, 8)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.80, 0.95, "pass"),
        (0.70, 0.80, "undecided"),
        (0.50, 0.74, "fail"),
        (1.26, 9.00, "fail"),
        (0.80, math.inf, "undecided"),
    ],
)
def test_a_row_passes_inside_its_bound_fails_outside_and_is_undecided_across_it(
    low: float, high: float, verdict: str
) -> None:
    assert CLAIMED.within(interval(low, high)).verdict == verdict


def test_a_count_passes_at_its_bound_and_fails_only_where_the_share_is_surely_lower() -> None:
    verdicts = {count: count_row("x", count, 40, 35).verdict for count in (40, 35, 34, 31, 30, 0)}
    assert verdicts == {40: "pass", 35: "pass", 34: "undecided", 31: "undecided", 30: "fail", 0: "fail"}


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    share = share_interval(8, 10)
    assert (share.low, share.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert share_interval(0, 10).low == 0.0
    assert share_interval(10, 10).high == 1.0
