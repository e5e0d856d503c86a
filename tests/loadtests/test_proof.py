"""What backs the split on this machine, what it rests on, and what is said without a proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.machine_selftest import BOUNDS
from loadtests.report.proof import NOT_PROVED, SPLIT_ROWS, proof
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
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
    sweep = tmp_path / "sweep"
    sweep.mkdir()
    return with_intervals(make_results(sweep), 0.1)


def write_selftest(folder: Path, **changes: Any) -> None:
    beside = folder.parent / "selftest"
    beside.mkdir(exist_ok=True)
    (beside / "selftest.json").write_text(json.dumps(SELFTEST | changes))


def test_without_a_selftest_the_split_is_not_proved_however_much_was_sampled(folder: Path) -> None:
    told = proof(found(with_samples(folder)))
    assert told.proved is False
    assert told.sentences[0].startswith(f"{NOT_PROVED}: no selftest of this machine and commit")


def test_what_the_split_rests_on_and_what_would_narrow_it_is_told(folder: Path) -> None:
    def one_worse(row: Row) -> tuple[int, int, int]:
        return (60, 40, 25) if (row["mode"], row["batch_size"]) == ("reduce-overhead", 4) else (60, 40, 0)

    edit_run(folder, lambda run: run.engine.update(linears={"layout": "aten", "reason": "as asked"}))
    rests_on, adds_up = proof(found(with_samples(folder, one_worse))).sentences[1:]
    assert "rest on 24,000 samples of the engine's thread (torch 2.13.0, 1 thread, linear weights aten)" in (
        rests_on
    )
    assert (
        "At most 20 % of a step's (compiled-cpp, prefill, batch 4), counted at either end, were" in rests_on
    )
    assert (
        "adds up classes 20 (in % of either part), the sampler's rate 6.0 (in points of the share)" in adds_up
    )
    assert "both without a selftest (one that passes and stands for this run leaves 10 and 3.0)" in adds_up
    assert "and counting, at most 3.4 points" in adds_up
    assert "More samples narrow the last" in adds_up


def test_what_the_selftest_leaves_open_is_told_where_it_is_added(folder: Path) -> None:
    rows = [*SELFTEST["rows"], {"name": BOUNDS[0].rows[0], "verdict": "fail", "low": 0.85, "high": 1.0}]  # type: ignore[misc]
    write_selftest(folder, rows=rows)
    told = proof(found(with_samples(folder))).sentences[-1]
    assert "classes 15 (in % of either part), the sampler's rate 3.0" in told
    assert "both as the selftest leaves them open (one that passes and stands for this run leaves 10" in told


def test_a_selftest_whose_split_rows_do_not_all_pass_is_counted_out(folder: Path) -> None:
    rows = [{"name": f"{start}: eager", "verdict": "pass"} for start in SPLIT_ROWS]
    rows[0]["verdict"] = "fail"
    rows[1]["verdict"] = "undecided"
    write_selftest(folder, rows=rows)
    told = proof(found(folder))
    assert told.proved is False
    assert f"of {len(rows)} rows about the split" in told.sentences[0]
    assert f"{len(rows) - 2} passed, 1 failed and 1 undecided" in told.sentences[0]


def test_a_selftest_that_failed_elsewhere_only_still_backs_the_split(folder: Path) -> None:
    rows = [*SELFTEST["rows"], {"name": "time of a /metrics scrape under load", "verdict": "fail"}]  # type: ignore[misc]
    write_selftest(folder, rows=rows, outcome="failed")
    assert proof(found(folder)).proved is True


def test_a_passed_selftest_of_this_machine_and_commit_backs_the_split(folder: Path) -> None:
    write_selftest(folder)
    assert proof(found(folder)).proved is True


@pytest.mark.parametrize(
    "changes",
    [
        {"cpu": "another"},
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
    write_selftest(folder, **changes)
    assert proof(found(folder)).proved is False


def test_undecided_rows_of_other_things_are_named_and_the_split_stays_proved(folder: Path) -> None:
    detail = "9 of 10 rows passed; undecided: step time, concurrency 8 / 1"
    rows = [*SELFTEST["rows"], {"name": "step time, concurrency 8 / 1", "verdict": "undecided"}]  # type: ignore[misc]
    write_selftest(folder, rows=rows, outcome="undecided", detail=detail)
    told = proof(found(folder))
    assert told.proved is True
    assert told.selftest == f"undecided: {detail}"


def test_rows_about_the_split_are_called_as_the_selftest_calls_them() -> None:
    names = {row.name for name, check in CHECKS.items() for row in check.judge(HONEST[name])}
    names |= {row.name for row in judge_served(HONEST["served-samples"])}
    assert all(any(name.startswith(start) for name in names) for start in SPLIT_ROWS)


def test_a_device_that_measures_dispatch_has_nothing_to_prove(tmp_path: Path) -> None:
    told = proof(found(make_results(tmp_path, device="cuda")))
    assert (told.proved, told.sentences) == (None, [])
