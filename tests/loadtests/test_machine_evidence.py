"""What `make evidence` keeps of a machine, from commands that leave made-up results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtests.compare.page import make_series_picture
from loadtests.plan.plan_file import read_plan_file
from loadtests.run.series import read_series
from tests.support import machine_evidence
from tests.support.made_plans import make_plan, make_report
from tests.support.made_results import CLEAR, make_results, make_series

PLAN = make_plan("quick", 1, ["eager", "compiled"], [1])


def test_all_that_was_measured_is_kept_and_what_failed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = tmp_path / "clone" / "results"

    def run(_: Path, *command: str, failed: int = 1) -> machine_evidence.Found:
        folder = Path(command[-1]) if "--out" in command else results / "20260101T000000Z-0"
        if command[1] == "selftest":
            (results / "selftest-0").mkdir()
            told = {"counts": {"failed": 1}, "outcome": "failed"}
            (results / "selftest-0" / "selftest.json").write_text(json.dumps(told))
        elif command[1] == "bench":
            make_report(make_results(folder, CLEAR, plan=PLAN))
        elif command[1] == "sweep":
            planned = read_plan_file(machine_evidence.ROOT / command[3])
            make_series(folder, {str(one.model): [CLEAR] * one.starts for one in planned})
            for name in read_series(folder).plans:
                make_report(folder / name)
            make_series_picture(folder)
        return " ".join(command[:2]), "exit code 0", True

    monkeypatch.setattr(machine_evidence, "run", run)
    found = list(machine_evidence.measured(tmp_path / "clone", tmp_path / "kept"))
    assert [what for what, _, holds in found if not holds] == [
        "cells whose requests queued: 0", "selftest: no row fails, complete",
    ]  # fmt: skip
    assert "tiny (2.9 M): 4 sweeps of one build agree: compiled in 4 of 4" in found[-1][1]
    assert {"requests.jsonl", "report.html"} <= {path.name for path in (tmp_path / "kept").iterdir()}
    assert (tmp_path / "kept-selftest" / "selftest.json").is_file()
    assert len(list((tmp_path / "kept-starts").glob("*/summary.csv"))) == 6
    assert "Where the answer changes" in (tmp_path / "kept-starts" / "README.md").read_text()
