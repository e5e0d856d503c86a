"""The document, the table, the last line and the exit code of a selftest."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from loadtests.run.environment import git_state
from service.front.settings import Settings
from service.selftest import report as report_module
from service.selftest import run
from service.selftest.checks import ALL_CHECKS, ENGINE_CHECKS
from service.selftest.events import CheckFinished, MachineFacts
from service.selftest.report import FILE, Report, new_report, read, write
from service.selftest.results import CheckResult, interval_result, not_measurable
from service.selftest.terminal import measured, print_table
from service.statistics.intervals import Interval

FACTS: dict[str, str | int] = {
    "cpu": "A CPU", "device": "A CPU", "torch": "2.13.0", "threads": 1,
    "dtype": "float32", "default_dtype": "float32",
}  # fmt: skip


def row(name: str, low: float, high: float) -> CheckResult:
    return interval_result(name, "≤ 1", Interval((low + high) / 2, low, high, 8), most=1.0)


GOOD = row("good", 0.5, 0.6)
OPEN = row("open", 0.9, 1.1)
BAD = row("bad", 2.0, 3.0)
GPU = not_measurable("gpu", "all", "no GPU")


@pytest.fixture(autouse=True)
def clean_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "git_state", lambda: {"commit": "0123456789ab", "dirty": False})


def made(rows: list[CheckResult], finished: set[str] | None = None) -> Report:
    return new_report(rows, set(ALL_CHECKS) if finished is None else finished, FACTS, Settings(), 12.0)


def test_the_document_has_the_fields_that_other_programs_read(tmp_path: Path) -> None:
    report = made([GOOD, OPEN, GPU])
    path = write(report, tmp_path / "selftest")
    assert path.name == FILE
    document = json.loads(path.read_text())
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
    assert read(path) == report


def printed(report: Report) -> str:
    console = Console(file=io.StringIO(), width=240)
    print_table(report, console)
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
    assert "partial, because: 18 of 19 checks were not run" in text


def test_a_duration_is_shown_in_its_unit_and_a_missing_value_as_a_dash() -> None:
    seconds = interval_result("x", "b", Interval(28.9e-6, 28.7e-6, 29.3e-6, 9), unit="s")
    assert measured(seconds) == "28.9 [28.7, 29.3] µs"
    assert measured(not_measurable("x", "b", "why")) == "–"


@pytest.mark.parametrize(("rows", "code"), [([GOOD], 0), ([GOOD, OPEN], 0), ([GOOD, BAD], 1)])
def test_the_exit_code_is_1_for_a_failed_row_and_the_last_line_names_what_did_not_pass(
    rows: list[CheckResult],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def in_worker(selftest: run._Selftest, names: list[str]) -> None:
        selftest._take(MachineFacts(FACTS))
        for name in names:
            selftest._take(CheckFinished(name, rows if name == "injected" else []))

    monkeypatch.setattr(run._Selftest, "in_worker", in_worker)
    only = list(ENGINE_CHECKS)
    assert run.main(Settings(), only, tmp_path) == code
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last["complete"] is False
    assert last["outcome"] == ("failed" if code else "partial")
    assert last["not_run"] == [name for name in ALL_CHECKS if name not in only]
    assert last["undecided"] == [row.name for row in rows if row.verdict == "undecided"]
    assert last["failed"] == [row.name for row in rows if row.verdict == "fail"]
    assert last["path"] == str(tmp_path / FILE)


def test_a_report_can_be_made_of_what_git_says_of_this_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_module, "git_state", git_state)
    report = report_module.new_report([], [], {}, Settings(), 1.0)
    assert (report.commit, report.dirty) == (git_state()["commit"], git_state()["dirty"])


def test_rows_are_on_disk_before_the_report_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_worker(selftest: run._Selftest, names: list[str]) -> None:
        selftest._take(CheckFinished("injected", [GOOD, BAD]))

    def breaks(*_: object) -> Report:
        raise RuntimeError("no report")

    monkeypatch.setattr(run._Selftest, "in_worker", in_worker)
    monkeypatch.setattr(run, "new_report", breaks)
    with pytest.raises(RuntimeError, match="no report"):
        run.main(Settings(), ["injected"], tmp_path)
    kept = [json.loads(line)["name"] for line in (tmp_path / run.ROWS_FILE).read_text().splitlines()]
    assert kept == [GOOD.name, BAD.name]
