"""Which selftest stands for a sweep, whether it proves the split, and what the split rests on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.findings import Findings
from loadtests.report.proof import BOUNDS, NOT_PROVED, SPLIT_ROWS, Proof
from loadtests.report.report_files import make_report
from loadtests.report.results import read_results
from loadtests.report.wording import rests_on
from service.proof.over_http import judge_served
from service.proof.worker import CHECKS
from tests.proof.samples import HONEST
from tests.support.made_results import CLEAR, Row, edit_run, make_results, with_intervals, with_samples

SELFTEST = {
    "commit": "0123456789ab",
    "cpu": "a CPU",
    "device": "a CPU",
    "complete": True,
    "outcome": "passed",
    "detail": "9 of 9 rows passed",
    "created": "2026-01-02T00:00:00Z",
    "dtype": "float32",
    "threads": 1,
    "torch": "2.13.0",
    "model": "tiny",
    "modes": list(CLEAR),
    "rows": [
        {"name": f"{start}: a row", "verdict": "pass", "low": right, "high": right}
        for start in SPLIT_ROWS
        for right in [next((bound.should for bound in BOUNDS if start in bound.rows), 0.0)]
    ],
}


def found(folder: Path) -> Findings:
    return Findings(read_results(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_intervals(make_results(tmp_path / "sweep"), 0.1)


def write_selftest(folder: Path, **changes: Any) -> None:
    beside = folder.parent / "selftest"
    beside.mkdir(exist_ok=True)
    (beside / "selftest.json").write_text(json.dumps(SELFTEST | changes))


def proof(folder: Path) -> Proof:
    return found(folder).proof


def test_what_the_split_rests_on_and_what_an_interval_adds_up_is_told(folder: Path) -> None:
    def one_worse(row: Row) -> tuple[int, int, int]:
        return (60, 40, 25) if (row["mode"], row["batch_size"]) == ("reduce-overhead", 4) else (60, 40, 0)

    told = dict(rests_on(found(with_samples(folder, one_worse))))
    assert told["samples"] == "24,000 of the engine's thread"
    whose = "(without a selftest; one that passes leaves 10 and 3.0)"
    assert told["taken for the other part"] == f"20 % of either part {whose}"
    assert told["shifted by sampling"] == f"6.0 points of the share {whose}"
    assert told["counting"].startswith("at most 3.4 points of the share (")
    assert told["in code of no class"] == (
        "at most 20 % of the samples, at either end (compiled-cpp, prefill, batch 4)"
    )


def test_what_the_selftest_leaves_open_is_told_where_it_is_added(folder: Path) -> None:
    rows = [*SELFTEST["rows"], {"name": BOUNDS[0].rows[0], "verdict": "fail", "low": 0.85, "high": 1.0}]  # type: ignore[misc]
    write_selftest(folder, rows=rows)
    told = dict(rests_on(found(with_samples(folder))))
    assert told["taken for the other part"] == (
        "15 % of either part (what the selftest leaves open; one that passes leaves 10 and 3.0)"
    )


def test_a_selftest_whose_split_rows_do_not_all_pass_is_counted_out(folder: Path) -> None:
    rows = [{"name": f"{start}: eager", "verdict": "pass"} for start in SPLIT_ROWS]
    rows[0]["verdict"] = "fail"
    rows[1]["verdict"] = "undecided"
    write_selftest(folder, rows=rows)
    told = proof(folder)
    counted = f"{len(rows)} rows about the split: {len(rows) - 2} passed, 1 failed, 1 undecided"
    assert told.proved is False
    assert counted in (told.missing or "")


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([], "passed"),
        ([{"name": "time of a /metrics scrape under load", "verdict": "fail"}], "failed"),
        ([{"name": "step time, concurrency 8 / 1", "verdict": "undecided"}], "undecided"),
    ],
)
def test_a_selftest_of_this_machine_and_commit_proves_the_split_whatever_else_failed(
    folder: Path, rows: list[dict[str, str]], outcome: str
) -> None:
    edit_run(folder, lambda run: run.environment.update(cpu_features="avx2, 01234567"))
    edit_run(folder, lambda run: run.engine.update(linears={"layout": "aten", "reason": "as measured"}))
    alike = {"cpu_features": "avx2, 01234567", "linears": "aten", "modes": [*CLEAR, "aot-inductor"]}
    write_selftest(folder, rows=[*SELFTEST["rows"], *rows], outcome=outcome, **alike)  # type: ignore[misc]
    told = proof(folder)
    assert (told.proved, told.missing) == (True, None)
    assert told.selftest.lower() == f"{outcome}: 9 of 9 rows passed"
    make_report(folder)
    assert NOT_PROVED not in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": "another"},
        {"cpu_features": "avx2, avx512f, 76543210"},
        {"cpu_features": None},
        {"commit": None},
        {"linears": "transposed"},
        {"commit": "another"},
        {"device": "another"},
        {"complete": False},
        {"dtype": "bfloat16"},
        {"threads": 2},
        {"torch": "2.14.1"},
        {"model": "small"},
        {"rows": [*SELFTEST["rows"], {"name": "plain-kernels", "verdict": "fail"}]},  # type: ignore[misc]
        {"modes": ["eager"]},
        {"rows": []},
        {"rows": [row for row in SELFTEST["rows"] if not row["name"].startswith(BOUNDS[1].rows)]},  # type: ignore[attr-defined]
        {"rows": [*SELFTEST["rows"], {"name": f"{SPLIT_ROWS[0]}: another", "verdict": "undecided"}]},  # type: ignore[misc]
        {"rows": [{"name": "time of a /metrics scrape under load", "verdict": "pass"}]},
    ],
    ids=str,
)
def test_a_selftest_of_something_else_or_without_a_word_on_the_split_does_not(
    folder: Path, changes: dict[str, Any]
) -> None:
    edit_run(folder, lambda run: run.environment.update(cpu_features="avx2, 01234567"))
    edit_run(folder, lambda run: run.engine.update(linears={"layout": "aten", "reason": "as measured"}))
    write_selftest(folder, **{"cpu_features": "avx2, 01234567", "linears": "aten"} | changes)
    assert proof(folder).proved is False


def test_rows_about_the_split_are_called_as_the_selftest_calls_them() -> None:
    names = {row.name for name, check in CHECKS.items() for row in check.judge(HONEST[name])}
    names |= {row.name for row in judge_served(HONEST["served-samples"])}
    assert all(any(name.startswith(start) for name in names) for start in SPLIT_ROWS)


def test_a_device_that_measures_dispatch_has_nothing_to_prove(tmp_path: Path) -> None:
    told = proof(make_results(tmp_path, device="cuda"))
    assert (told.proved, told.missing) == (None, None)


def test_of_several_selftests_the_newest_of_a_build_without_changes_is_taken(folder: Path) -> None:
    write_selftest(folder, outcome="failed", created="2026-01-03T00:00:00Z")
    older = folder.parent / "selftest-of-before"
    older.mkdir()
    (older / "selftest.json").write_text(json.dumps(SELFTEST))
    assert proof(folder).selftest == "FAILED: 9 of 9 rows passed"
    edit_run(folder, lambda run: run.environment.update(dirty=True))
    assert proof(folder).selftest == "not run on this machine and commit (launchbound selftest)"
    assert proof(folder).proved is False
