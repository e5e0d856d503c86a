"""Which selftest a report shows, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.plan.presets import make_plan
from loadtests.report.machine_selftest import find_selftest, ran_alike, selftest_line
from loadtests.run.run_file import SweepRun

MACHINE = {"cpu": "a CPU", "cpu_features": "avx2, 01234567"}
COMPLETE: dict[str, object] = {
    **MACHINE,
    "commit": "0123456789ab",
    "device": "a CPU",
    "complete": True,
    "outcome": "undecided",
    "detail": "8 of 9 rows passed; undecided: a row",
    "created": "2026-01-02T00:00:00Z",
}


def sweep(**changes: object) -> SweepRun:
    environment = {**MACHINE, "commit": "0123456789ab", "dirty": False, **changes}
    return SweepRun(
        run="r", url="", plan=make_plan("quick", 1), seed=1, started="", environment=environment,
        engine={"device_name": "a CPU"},
    )  # fmt: skip


def results(tmp_path: Path, *documents: dict[str, object]) -> Path:
    """A sweep's folder with selftests beside it, in folders whose names do not tell which is the newest."""
    for number, document in enumerate(documents):
        folder = tmp_path / f"selftest-{number}"
        folder.mkdir()
        (folder / "selftest.json").write_text(json.dumps(document))
    folder = tmp_path / "sweep"
    folder.mkdir()
    return folder


def test_a_complete_selftest_of_this_machine_and_commit_is_found(tmp_path: Path) -> None:
    assert find_selftest(results(tmp_path, COMPLETE), sweep()) == COMPLETE


@pytest.mark.parametrize(
    "change",
    [
        {"complete": False},
        {"cpu": "another"},
        {"cpu_features": "avx2, avx512f, 76543210"},
        {"cpu_features": None},
        {"commit": "ba9876543210"},
        {"device": "a GPU"},
        {"commit": None},
    ],
)
def test_a_partial_one_and_one_of_another_machine_or_commit_are_not(
    tmp_path: Path, change: dict[str, object]
) -> None:
    assert find_selftest(results(tmp_path, COMPLETE | change), sweep()) is None


def test_one_of_the_first_format_which_counted_whatever_was_run_is_not(tmp_path: Path) -> None:
    first = {key: value for key, value in COMPLETE.items() if key != "complete"} | {"passed": True}
    assert find_selftest(results(tmp_path, first), sweep()) is None


def test_no_selftest_stands_for_a_sweep_with_uncommitted_changes(tmp_path: Path) -> None:
    folder = results(tmp_path, COMPLETE)
    assert find_selftest(folder, sweep(dirty=True)) is None
    assert find_selftest(folder, sweep(dirty=False)) == COMPLETE


def test_of_several_the_newest_is_taken(tmp_path: Path) -> None:
    newer = COMPLETE | {"created": "2026-01-03T00:00:00Z", "outcome": "passed"}
    assert find_selftest(results(tmp_path, newer, COMPLETE), sweep()) == newer


def test_a_newer_partial_one_does_not_hide_a_complete_one(tmp_path: Path) -> None:
    newer = COMPLETE | {"created": "2026-01-03T00:00:00Z", "complete": False}
    assert find_selftest(results(tmp_path, newer, COMPLETE), sweep()) == COMPLETE


def test_the_line_names_the_rows_that_did_not_pass() -> None:
    assert selftest_line(COMPLETE) == "undecided: 8 of 9 rows passed; undecided: a row"
    assert selftest_line(COMPLETE | {"outcome": "failed"}).startswith("FAILED: 8 of 9")
    assert selftest_line(None) == "not run on this machine and commit (launchbound selftest)"


ALIKE: dict[str, object] = {
    "torch": "2.13.0",
    "model": "tiny",
    "dtype": "float32",
    "threads": 1,
    "linears": "aten",
}


@pytest.mark.parametrize(
    ("changes", "alike"),
    [
        ({}, True),
        ({"modes": [*make_plan("quick", 1).ladder_modes, "aot-inductor"]}, True),
        ({"modes": make_plan("quick", 1).ladder_modes[:-1]}, False),
        ({"modes": None}, False),
        ({"dtype": "bfloat16"}, False),
        ({"threads": 2}, False),
        ({"linears": "transposed"}, False),
        ({"torch": "2.14.1"}, False),
        ({"model": "small"}, False),
    ],
)
def test_a_selftest_ran_alike_with_all_of_the_sweeps_modes_and_the_same_kernels(
    changes: dict[str, object], alike: bool
) -> None:
    run = sweep()
    run.engine.update({**ALIKE, "linears": {"layout": "aten"}})
    assert ran_alike({**ALIKE, "modes": run.plan.ladder_modes, **changes}, run) is alike
