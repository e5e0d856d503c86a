"""What backs the split on this machine, how far its witnesses lie apart, and what is said without them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.proof import NOT_PROVED, SPLIT_ROWS, proof
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
from loadtests.report.witnesses import witnesses
from service.selftest.worker import CHECKS
from tests.selftest.samples import HONEST
from tests.support.made_evidence import edit_run, with_floors, with_intervals, with_samples
from tests.support.made_results import CLEAR, make_results

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
    "modes": list(CLEAR),
    "rows": [{"name": f"{start}: a row", "verdict": "pass"} for start in SPLIT_ROWS],
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


def test_without_stacks_and_selftest_the_split_is_not_proved(folder: Path) -> None:
    told = proof(found(folder))
    assert told.proved is False
    assert told.sentences[0].startswith(NOT_PROVED)
    assert "no native stacks were sampled" in told.sentences[0]


def test_floors_without_stacks_prove_nothing(folder: Path) -> None:
    assert proof(found(with_floors(folder, off=None))).proved is False


def test_stacks_sampled_in_the_run_itself_do_not_prove_its_split_however_well_they_agree(
    folder: Path,
) -> None:
    told = proof(found(with_floors(folder, off=0.02)))
    assert told.proved is False
    assert told.sentences[0].startswith(
        f"{NOT_PROVED}: the split rests on sampled native stacks, and no selftest"
    )
    assert "agree within 2 points" in told.sentences[1]


def test_without_a_twin_the_samples_of_the_visits_are_told_with_what_they_leave_open(folder: Path) -> None:
    told = proof(found(with_samples(folder)))
    assert told.sentences[0].startswith(f"{NOT_PROVED}: the split rests on sampled native stacks")
    assert told.sentences[1].endswith("up to 20 % of either part may be the other's.")


def test_stacks_that_disagree_are_told_with_the_worst_case(folder: Path) -> None:
    def one_worse(run: Any) -> None:
        for floor in run.floors_after:
            if (floor["mode"], floor["phase"], floor["batch"]) == ("reduce-overhead", "decode", 4):
                floor["stacks"] |= {"kernel_share": 0.765, "low": 0.75, "high": 0.78}

    edit_run(with_floors(folder, off=0.08), one_worse)
    findings = found(folder)
    worst = max(witnesses(findings), key=lambda witness: witness.difference)
    assert (worst.mode, worst.phase, worst.batch) == ("compiled-cpp", "decode", 4)
    assert (
        "disagree by up to 10 points (compiled-cpp, decode, batch 4: 86% kernel by the twin"
        in proof(findings).sentences[1]
    )


def test_wide_intervals_do_not_make_agreement_of_a_large_difference(folder: Path) -> None:
    def one_unsure(run: Any) -> None:
        for floor in run.floors_after:
            if (floor["mode"], floor["phase"], floor["batch"]) == ("reduce-overhead", "decode", 4):
                floor["stacks"] |= {"kernel_share": 0.5, "low": 0.1, "high": 0.95}

    edit_run(with_floors(folder, off=0.02), one_unsure)
    told = proof(found(folder)).sentences[1]
    assert re.search(r"differ, within their own intervals, by up to 3\d points", told)


def test_a_selftest_whose_split_rows_do_not_all_pass_is_counted_out(folder: Path) -> None:
    rows = [{"name": f"{start}: eager", "verdict": "pass"} for start in SPLIT_ROWS]
    rows[0]["verdict"] = "fail"
    rows[1]["verdict"] = "undecided"
    write_selftest(folder, rows=rows)
    told = proof(found(folder))
    assert told.proved is False
    assert f"of {len(rows)} rows about it" in told.sentences[0]
    assert f"{len(rows) - 2} passed, 1 failed and 1 undecided" in told.sentences[0]


def test_a_selftest_that_failed_elsewhere_only_still_backs_the_split(folder: Path) -> None:
    rows = [*SELFTEST["rows"], {"name": "time of a /metrics scrape under load", "verdict": "fail"}]  # type: ignore[misc]
    write_selftest(folder, rows=rows, outcome="failed")
    assert proof(found(folder)).proved is True


def test_combinations_without_stacks_are_counted(folder: Path) -> None:
    def drop_prefill(run: Any) -> None:
        for floor in [*run.floors_before, *run.floors_after]:
            if floor["phase"] == "prefill":
                floor["stacks"] = None

    edit_run(with_floors(folder), drop_prefill)
    assert proof(found(folder)).sentences[-1] == (
        "Native stacks were sampled for 15 of 30 combinations of mode, phase and batch."
    )


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
        {"modes": ["eager"]},
        {"rows": []},
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
    assert all(any(name.startswith(start) for name in names) for start in SPLIT_ROWS)


def test_a_device_that_measures_dispatch_has_nothing_to_prove(tmp_path: Path) -> None:
    told = proof(found(make_results(tmp_path, device="cuda")))
    assert (told.proved, told.sentences) == (None, [])
