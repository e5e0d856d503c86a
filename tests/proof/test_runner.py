"""A selftest: verdicts by bounds, every row can fail, the document, the table and the exit code."""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from rich.console import Console

from service.front.settings import Settings
from service.measure.cpu_sampler import Place
from service.measure.rounds import Log, OffCpuTime
from service.measure.symbols import RULES, side_of
from service.modes import swept_modes
from service.proof import over_http, runner, worker
from service.proof.rows import (
    Check,
    Event,
    NotMeasurableError,
    Property,
    Row,
    count_row,
    run_check,
    share_interval,
)
from service.proof.runner import ALL_CHECKS, new_report
from service.statistics.intervals import Interval, median_interval
from tests.measure.test_symbols import HOST_SAMPLES, KERNEL_SAMPLES
from tests.proof.samples import CODE, FAILURES, HONEST, Code, Failure, injected, unclassified, without

CHECKS: dict[str, Check] = {**worker.CHECKS, **over_http.CHECKS}

FACTS: dict[str, str | int] = {
    "cpu": "A CPU", "device": "A CPU", "torch": "2.13.0", "threads": 1,
    "dtype": "float32", "default_dtype": "float32",
}  # fmt: skip


SETTINGS = Settings(modes=swept_modes("cpu"))
GIT: Mapping[str, object] = {"commit": "0123456789ab", "dirty": False}


def row(name: str, low: float, high: float) -> Row:
    return Property(name, "≤ 1", most=1.0).within(Interval((low + high) / 2, low, high, 8))


GOOD = row("good", 0.5, 0.6)
OPEN = row("open", 0.9, 1.1)
BAD = row("bad", 2.0, 3.0)
GPU = Property("gpu", "all").not_measurable("no GPU")


@pytest.fixture(autouse=True)
def clean_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "git_state", lambda: {"commit": "0123456789ab", "dirty": False})


def made(rows: list[Row], finished: set[str] | None = None) -> dict[str, Any]:
    return new_report(rows, set(runner.ALL_CHECKS) if finished is None else finished, FACTS, SETTINGS, 12.0)


def test_the_document_has_the_fields_that_other_programs_read() -> None:
    report = made([GOOD, OPEN, GPU])
    document = json.loads(msgspec.json.encode(report))
    assert {"commit", "dirty", "machine", "cpu", "device", "dtype", "model", "created"} <= document.keys()
    assert (document["format_version"], document["machine"]) == (2, "A CPU")
    assert (document["outcome"], document["complete"], document["incomplete_because"]) == (
        "undecided",
        True,
        [],
    )
    assert document["counts"]["undecided"] == 1
    assert document["rows_by_verdict"]["undecided"] == ["open"]
    assert document["detail"] == "1 of 2 rows passed; undecided: open; not measurable here: gpu"
    for found in document["rows"]:
        assert {"name", "bound", "value", "low", "high", "verdict", "note", "runs"} <= found.keys()
    assert document["rows"][2]["value"] is None


def printed(report: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=240)
    runner.print_table(report, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return str(text)


def test_the_table_ends_with_the_outcome_and_every_row_that_did_not_pass() -> None:
    assert "passed. 1 of 1 rows passed." in printed(made([GOOD]))
    undecided = printed(made([GOOD, OPEN]))
    assert "UNDECIDED: no row failed, and not all passed. 1 of 2 rows passed; undecided: open." in undecided
    assert "FAILED. 1 of 2 rows passed; failed: bad." in printed(made([GOOD, BAD]))


def test_a_partial_selftest_says_so_and_why() -> None:
    text = printed(made([GOOD], {"injected"}))
    assert "PARTIAL" in text
    assert "does not count as the machine's selftest. 1 of 1 rows passed; not run: sampling-rate, " in text
    assert "partial, because: 13 of 14 checks were not run" in text


@pytest.mark.parametrize(("rows", "code"), [([GOOD], 0), ([GOOD, OPEN], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_is_1_for_a_failed_row_and_the_last_line_names_what_did_not_pass(
    rows: list[Row],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def in_worker(selftest: runner._Selftest, names: list[str]) -> None:
        selftest.take(Event(facts=FACTS))
        for name in names:
            selftest.take(Event(name, rows=rows if name == "injected" else []))

    monkeypatch.setattr(runner._Selftest, "in_worker", in_worker)
    only = list(runner.ENGINE_CHECKS)
    assert runner.main(SETTINGS, only, tmp_path) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["complete"] is False
    assert last["outcome"] == ("failed" if code else "partial")
    assert last["not_run"] == [name for name in runner.ALL_CHECKS if name not in only]
    assert last["undecided"] == [row.name for row in rows if row.verdict == "undecided"]
    assert last["failed"] == [row.name for row in rows if row.verdict == "fail"]
    assert last["path"] == str(tmp_path / runner.FILE)


def test_rows_are_on_disk_before_the_report_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(selftest: runner._Selftest, names: list[str]) -> None:
        selftest.take(Event("injected", rows=[GOOD, BAD]))

    def breaks(*_: object) -> dict[str, Any]:
        raise RuntimeError("no report")

    monkeypatch.setattr(runner._Selftest, "in_worker", in_worker)
    monkeypatch.setattr(runner, "new_report", breaks)
    with pytest.raises(RuntimeError, match="no report"):
        runner.main(SETTINGS, ["injected"], tmp_path)
    kept = [json.loads(line)["name"] for line in (tmp_path / runner.ROWS_FILE).read_text().splitlines()]
    assert kept == [GOOD.name, BAD.name]


@pytest.mark.parametrize("name", CHECKS)
def test_the_rows_of_a_check_can_be_judged_again_from_the_samples_on_disk(name: str, tmp_path: Path) -> None:
    (failure, *_), judge = FAILURES[name], CHECKS[name].judge
    rows, runs = run_check(name, Check(lambda *_: failure.found, judge), None, lambda _: None)
    selftest = runner._Selftest(SETTINGS, tmp_path, Console(file=io.StringIO()))
    event = Event(name, rows=rows, runs=runs)
    selftest.take(msgspec.json.decode(msgspec.json.encode(event), type=Event))  # as from the worker
    (line,) = (tmp_path / runner.SAMPLES_FILE).read_text().splitlines()
    (run,) = json.loads(line)["runs"]
    kinds = get_type_hints(CHECKS[name].measure)["return"]
    assert list(judge(read_again(run["samples"], kinds))) == rows
    assert "fail" in {row.verdict for row in rows}


def read_again(pairs: list[Any], kinds: Any) -> dict[Any, list[Any]]:
    """Samples of the types that a check measures; counts are pairs in the file."""
    key, samples = get_args(kinds)
    if samples == list[Counter[Place]]:
        counts = msgspec.convert(pairs, list[tuple[key, list[list[tuple[Place, int]]]]])  # type: ignore[valid-type]
        return {step: [Counter(dict(one)) for one in own] for step, own in counts}
    return dict(msgspec.convert(pairs, list[tuple[key, samples]]))  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("rows", "complete", "outcome"),
    [
        ([GOOD, GPU], True, "passed"),
        ([GOOD, OPEN], True, "undecided"),
        ([GOOD, OPEN, BAD], True, "failed"),
        ([GOOD], False, "partial"),
        ([BAD], False, "failed"),
    ],
)
def test_passed_is_said_only_of_a_complete_selftest_without_failed_and_undecided_rows(
    rows: list[Row], complete: bool, outcome: str
) -> None:
    assert runner.outcome_of(runner.tally(rows, runner.ALL_CHECKS), complete) == outcome


@pytest.mark.parametrize(
    ("settings", "facts", "git", "not_run", "reason"),
    [
        ({}, {}, {}, [], None),
        ({}, {}, {}, ["added", "parts"], "2 of 14 checks were not run"),
        ({}, {}, {"dirty": True}, [], "uncommitted changes"),
        ({}, {}, {"commit": None}, [], "the commit is unknown"),
        ({}, {"dtype": "bfloat16"}, {}, [], "dtype is bfloat16"),
        ({"model": "small"}, {}, {}, [], "model is small"),
        ({"modes": ["eager", "compiled"]}, {}, {}, [], "modes is eager,compiled"),
        ({"batch_sizes": [1]}, {}, {}, [], "batch_sizes is 1"),
    ],
)
def test_anything_but_all_checks_at_the_defaults_of_a_clean_commit_is_partial_and_says_why(
    settings: dict[str, object],
    facts: dict[str, str],
    git: dict[str, object],
    not_run: list[str],
    reason: str | None,
) -> None:
    chosen = Settings.model_validate({"modes": swept_modes("cpu"), **settings})
    reasons = runner.why_incomplete(chosen, {**FACTS, **facts}, {**GIT, **git}, not_run)
    assert reasons == ([reason] if reason else [])


def test_an_unknown_check_is_refused_with_those_there_are() -> None:
    assert runner.choose_checks(["added", "injected"]) == ["injected", "added"]
    assert runner.choose_checks(None) == list(runner.ALL_CHECKS)
    with pytest.raises(ValueError, match=r"no check 'injectd': try some of injected, "):
        runner.choose_checks(["injectd"])


# Verdicts by bounds, repeated runs, disturbed cores, checks that break or cannot measure


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
    assert CLAIMED.within(Interval((low + high) / 2, low, high, 8)).verdict == verdict


def test_a_count_passes_at_its_bound_and_fails_only_where_the_share_is_surely_lower() -> None:
    verdicts = {count: count_row("x", count, 40, 35).verdict for count in (40, 35, 34, 31, 30, 0)}
    assert verdicts == {40: "pass", 35: "pass", 34: "undecided", 31: "undecided", 30: "fail", 0: "fail"}


def test_the_interval_of_a_share_is_that_of_clopper_and_pearson() -> None:
    share = share_interval(8, 10)
    assert (share.low, share.high) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert share_interval(0, 10).low == 0.0
    assert share_interval(10, 10).high == 1.0


# Every row of every check fails for the error that it is for, and passes without it


CASES = [(name, failure) for name, failures in FAILURES.items() for failure in failures]


def test_every_check_has_samples_that_fail_it_and_samples_that_pass() -> None:
    assert list(CHECKS) == list(ALL_CHECKS)
    assert FAILURES.keys() == set(ALL_CHECKS)
    assert HONEST.keys() == set(ALL_CHECKS)


@pytest.mark.parametrize("name", ALL_CHECKS)
def test_honest_samples_pass_every_row(name: str) -> None:
    rows = list(CHECKS[name].judge(HONEST[name]))
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


@pytest.mark.parametrize("removed", [rule.name for rule in RULES if rule.side != "unclassified"])
def test_without_any_one_rule_some_row_about_the_classes_fails(removed: str) -> None:
    """Where a kind of injected work, and a tenth of each step, are in code that this rule alone knows."""
    sides = {code: side_of(*code) for code in (*KERNEL_SAMPLES, *HOST_SAMPLES, SYSTEM)}
    with without(removed):
        code = next(code for code, side in sides.items() if side_of(*code) != side)
        assert rows_that_fail(code, sides[code])
    assert not rows_that_fail(code, sides[code])


def rows_that_fail(code: Code, side: str) -> list[str]:
    injected_there = CODE if side == "system" else CODE | {KIND[side]: code}
    found = {"injected": injected(code=injected_there), "unclassified": unclassified(code)}
    rows = (row for name, samples in found.items() for row in CHECKS[name].judge(samples))
    return [row.name for row in rows if row.verdict == "fail"]
