"""Floors after a sweep widen the interval of dispatch, and never narrow it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests.plan.presets import make_plan
from loadtests.report.floor_changes import floor_changes
from loadtests.report.later_floors import LaterFloor, later_floor
from loadtests.report.results import read_results
from loadtests.report.verdict import Findings
from loadtests.run.run_file import SweepRun
from service.statistics.estimates import Split
from tests.support.made_evidence import edit_run, with_floors
from tests.support.made_results import make_results

SPLIT = Split(dispatch=3.0, kernel=7.0, low=2.5, high=3.5)


def run_with(*floors: dict[str, Any]) -> SweepRun:
    plan = make_plan("quick")
    return SweepRun(run="r", url="", plan=plan, seed=0, started="", floors_after=list(floors))


def floor(**changes: Any) -> dict[str, Any]:
    return {
        "mode": "eager",
        "phase": "decode",
        "batch": 1,
        "low": 0.1,
        "high": 0.2,
        "stacks": None,
        **changes,
    }


def test_what_lies_within_changes_nothing() -> None:
    assert LaterFloor(low=0.26, high=0.34).widened(SPLIT, steps=10) == SPLIT


def test_a_floor_that_moved_reaches_further_and_the_value_stays() -> None:
    found = LaterFloor(low=0.2, high=0.6).widened(SPLIT, steps=10)
    assert (found.low, found.high) == (2.0, 6.0)
    assert (found.dispatch, found.kernel) == (3.0, 7.0)


def test_shares_of_stacks_count_too_and_dispatch_is_never_more_than_the_wall() -> None:
    found = LaterFloor(low=0.3, high=0.3, least=0.1, most=0.8).widened(SPLIT, steps=10)
    assert (found.low, found.high) == (1.0, 8.0)
    assert LaterFloor(low=0.3, high=5.0).widened(SPLIT, steps=10).high == 10.0


def test_both_witnesses_of_the_place_are_read_and_no_other() -> None:
    stacks = {"kernel_share": 0.6, "low": 0.5, "high": 0.75, "samples": 9, "step_seconds": 1.0}
    run = run_with(floor(stacks=stacks), floor(phase="prefill"), floor(mode="no_grad"))
    assert later_floor(run, "eager", "decode", 1) == LaterFloor(0.1, 0.5, 0.25, 0.5)
    assert later_floor(run, "no_grad", "decode", 1) == LaterFloor(0.1, 0.2)
    assert later_floor(run, "eager", "decode", 4) is None


@pytest.mark.parametrize("end", ["low", "high"])
def test_a_floor_without_an_interval_says_nothing(end: str) -> None:
    assert later_floor(run_with(floor(**{end: None})), "eager", "decode", 1) is None


def test_the_table_of_floors_says_what_moved_and_what_only_stands_for_others(tmp_path: Path) -> None:
    folder = with_floors(make_results(tmp_path), off=0.02, moved=1.0)

    def change(run: SweepRun) -> None:
        for floor in run.floors_after:
            place = floor["mode"], floor["phase"], floor["batch"]
            if place == ("eager", "decode", 1):
                floor |= {key: 1.2 * floor[key] for key in ("seconds", "low", "high")}
            if place == ("eager", "decode", 4):
                floor |= {key: 1.2 * floor[key] for key in ("seconds", "low", "high")} | {
                    "source": "smallest_batch"
                }
            if place == ("compiled", "decode", 1):
                share = floor["stacks"]["kernel_share"] - 0.2
                floor["stacks"] |= {"kernel_share": share, "low": share - 0.03, "high": share + 0.03}

    edit_run(folder, change)
    words = {
        (one.mode, one.phase, one.batch): one.word for one in floor_changes(Findings(read_results(folder)))
    }
    assert words["eager", "decode", 1] == "moved"
    assert words["eager", "decode", 4] == "that of the smallest batch"
    assert words["compiled", "decode", 1] == "moved, by its sampled stacks"
    assert words["no_grad", "decode", 1] == "within its interval"
