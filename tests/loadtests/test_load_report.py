"""The report finds the knee of a made sweep, bounds it where the ladder does, and says how it judged."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from loadtests.report.csv_files import KNEES_FILE, LOAD_FILE, knee_records, load_records
from loadtests.report.findings import Findings
from loadtests.report.load import ModeKnee
from loadtests.report.load_section import load_tables
from loadtests.report.results import Results, read_results
from service.statistics.knee import Bounds
from tests.support.made_plans import make_report
from tests.support.made_results import SERVICE, edit_rows, make_load, make_results

NEAR = (20, 30, 40, 50, 60, 70, 80, 90, 100, 110)


@cache
def results(folder: Path) -> Results:
    """Those of a folder that changes no more."""
    return read_results(folder)


def knees_of(folder: Path) -> dict[str, ModeKnee]:
    (knees,) = Findings(results(folder)).load.knees.values()
    return {one.mode: one for one in knees}


def said(folder: Path) -> dict[str, str]:
    """The table of knees: by mode its knee."""
    knees, *_ = load_tables(Findings(results(folder)).load)
    return {row[0].text: str(row[1]) for row in knees.rows}


def cells(folder: Path, mode: str) -> dict[float, dict[str, Any]]:
    """The records of `load.csv` by rate."""
    records = load_records(Findings(results(folder)).load)
    return {record["offered_per_second"]: record for record in records if record["mode"] == mode}


def test_a_ladder_below_the_knee_says_at_least_and_one_above_it_says_below(tmp_path: Path) -> None:
    slow, fast = make_load(tmp_path / "slow", (5, 10)), make_load(tmp_path / "fast", (150, 200))
    assert said(fast)["eager"] == "below 150"
    assert knees_of(slow)["eager"].estimate.value == Bounds(10.0, float("inf"))


def test_rounds_that_exclude_no_rate_give_no_knee(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40), requests=8, rounds=2)
    assert said(tmp_path)["eager"] == "– (no rate is excluded: more requests or rounds would)"
    for record in knee_records(Findings(results(tmp_path)).load):
        assert record["knee_least"] is record["knee_high"] is None


@pytest.mark.slow
def test_the_knee_is_where_answers_no_longer_keep_up(tmp_path: Path) -> None:
    make_load(tmp_path, (40, 50, 60, 80, 100, 120), requests=150)
    for mode, seconds in SERVICE.items():
        estimate = knees_of(tmp_path)[mode].estimate
        assert estimate.value.low * seconds == pytest.approx(1.0, abs=0.12)
        assert estimate.low <= estimate.value.low <= estimate.high
    assert cells(tmp_path, "eager")[120]["served_per_second"] == pytest.approx(50, rel=0.05)


def test_cutting_every_block_at_a_rate_puts_the_knee_below_it_and_leaves_no_latency(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40, 120), cut=[(number, "eager") for number in range(1, 9)])
    assert knees_of(tmp_path)["eager"].estimate.value.high < 120
    record = cells(tmp_path, "eager")[120]
    assert (record["cut_visits"], record["e2e_p50_seconds"]) == (8, None)
    assert record["served_per_second"] == pytest.approx(50, rel=0.05)
    assert cells(tmp_path, "eager")[20]["e2e_p50_seconds"] > 0


def test_refused_requests_have_no_latency_and_are_no_failures(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 200), most_waiting=4)
    record = cells(tmp_path, "eager")[200]
    assert record["rejected"] > 400
    assert record["failed"] == 0
    assert record["served_per_second"] == pytest.approx(50, rel=0.1)
    assert record["e2e_p99_seconds"] is None or record["e2e_p99_seconds"] < 0.15


def test_merged_requests_have_their_effective_batch(tmp_path: Path) -> None:
    in_turn, merged = (make_load(tmp_path / name, (30,), requests=40) for name in ("in turn", "merged"))
    edit_rows(merged, lambda row: row.update(effective_batch=1.0 + row["round"] % 2))
    before, record = (cells(folder, "eager")[30] for folder in (in_turn, merged))
    assert record["effective_batch"] == pytest.approx(1.5)
    assert record["effective_batch_low"] < 1.5 < record["effective_batch_high"]
    assert record["queue_mean_seconds"] == before["queue_mean_seconds"] > 0
    assert before["effective_batch"] is None


def test_a_block_that_the_end_of_a_sweep_interrupted_is_left_out(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 100), requests=40)
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))
    assert {mode: one.rounds for mode, one in knees_of(tmp_path).items()} == {
        "eager": 8,
        "inference_mode": 7,
    }


def test_the_tables_are_written_only_where_there_is_load(tmp_path: Path) -> None:
    loaded = make_load(tmp_path / "loaded", NEAR, cut=[(3, "eager"), (4, "eager")])
    make_report(loaded)
    knees, rates = (
        list(csv.DictReader((loaded / name).read_text().splitlines())) for name in (KNEES_FILE, LOAD_FILE)
    )
    assert [row["mode"] for row in knees] == list(SERVICE)
    assert len(rates) == 2 * len(NEAR)
    assert "of the rate offered or more" in (loaded / "report.md").read_text()
    without = make_results(tmp_path / "without")
    make_report(without)
    assert not (without / KNEES_FILE).exists()
    assert "Under load" not in (without / "report.md").read_text()
