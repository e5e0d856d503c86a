"""The report finds the knee of a made sweep, bounds it where the ladder does, and says how it judged."""

from __future__ import annotations

import csv
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import launchbound
from loadtests import library
from loadtests.plan.cells import PlanError, Slo, parse_slo
from loadtests.report.csv_files import KNEES_FILE, LOAD_FILE, load_records
from loadtests.report.findings import Findings
from loadtests.report.load import LoadGroup, ModeKnee
from loadtests.report.load_section import load_tables
from loadtests.report.report_files import make_report
from loadtests.report.results import Results, read_results
from service.statistics.intervals import settling
from service.statistics.knee import Bounds
from tests.support.made_results import KNEES, SERVICE, edit_rows, make_load, make_results

IN_TIME = Slo(e2e_seconds=0.12)
"""Six times eager's time in service, twelve times inference_mode's."""

NEAR = (20, 30, 40, 50, 60, 70, 80, 90, 100, 110)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reported sweep with objectives of its own, whose eager visits were cut twice at the highest rate."""
    folder = tmp_path_factory.mktemp("load")
    make_load(folder, NEAR, slo=IN_TIME, cut=[(3, "eager"), (4, "eager")])
    make_report(folder)
    return folder


@cache
def results(folder: Path) -> Results:
    """Those of a folder that changes no more."""
    return read_results(folder)


def group_of(folder: Path, slo: Slo | None = None) -> LoadGroup:
    (group,) = Findings(results(folder), slo).load.groups
    return group


def knee_of(folder: Path, mode: str, slo: Slo | None = None) -> ModeKnee:
    return next(one for one in group_of(folder, slo).knees if one.mode == mode)


def said(folder: Path, slo: Slo | None = None) -> dict[str, list[str]]:
    """The table of knees: by mode the knee and its ratio to the first mode's."""
    findings = Findings(results(folder), slo)
    knees, *_ = load_tables(findings.load)
    return {row[0].text: [str(cell) for cell in row[1:3]] for row in knees.rows}


def cells(folder: Path, mode: str) -> dict[float, dict[str, Any]]:
    """The records of `load.csv` by rate."""
    records = load_records(Findings(results(folder)).load)
    return {record["offered_per_second"]: record for record in records if record["mode"] == mode}


def test_the_interval_of_each_mode_holds_its_knee(loaded: Path) -> None:
    for mode, truth in KNEES.items():
        estimate = knee_of(loaded, mode).estimate
        assert estimate.low <= truth <= estimate.high
        assert estimate.value.low == pytest.approx(truth, rel=0.15)


def test_a_ladder_below_the_knee_says_at_least_and_one_above_it_says_below(tmp_path: Path) -> None:
    slow = make_load(tmp_path / "slow", (5, 10), slo=IN_TIME)
    fast = make_load(tmp_path / "fast", (150, 200), slo=IN_TIME)
    assert said(fast)["eager"][0] == "below 150"
    estimate = knee_of(slow, "eager").estimate
    assert estimate.value == Bounds(10.0, float("inf"))
    assert list(said(slow).values()) == [["at least 10.0", "–"]] * 2  # and no ratio


def test_rounds_that_exclude_no_rate_give_no_knee(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40), requests=8, rounds=2)
    assert said(tmp_path)["eager"][0] == "– (no rate is excluded: more requests or rounds would)"
    assert library.knees(tmp_path).select("knee_least", "knee_high", "ratio_least").null_count().row(0) == (
        2,
        2,
        2,
    )


def test_other_objectives_move_the_knee_and_the_report_of_the_command_says_whose_they_are(
    loaded: Path, tmp_path: Path
) -> None:
    strict = parse_slo("e2e=0.05,share=0.9")
    own, other = knee_of(loaded, "eager").estimate, knee_of(loaded, "eager", strict).estimate
    assert other.value.low < own.value.low
    runner, folder = CliRunner(), str(shutil.copytree(loaded, tmp_path / "strict"))
    done = runner.invoke(launchbound.app, ["report", folder, "--slo", "e2e=0.05,share=0.9"])
    assert "answered within 50 ms" in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["path"] == folder
    text = Path(folder, "report.md").read_text()
    assert "at least 90 % of the requests are answered within 50 ms" in text
    refused = runner.invoke(launchbound.app, ["report", folder, "--slo", "latency=1"])
    assert refused.exit_code == 2
    assert "write it as in ttft=" in refused.output
    two = runner.invoke(launchbound.app, ["report", folder, folder, "--slo", "e2e=1"])
    assert two.exit_code == 2


@pytest.mark.parametrize("text", ["ttft=0.03", "tpot=0.0003", "e2e=0.2"])
def test_each_objective_is_judged_by_its_own_latency(loaded: Path, text: str) -> None:
    slo = parse_slo(text)
    kind, limit = text.split("=")
    blocks = [block for one in Findings(results(loaded), slo).load.cells for block in one.blocks]
    shares = {block.met_share for block in blocks}
    assert len(shares) > 5
    for block in blocks:
        in_time = block.latencies[kind] <= float(limit)  # type: ignore[index]
        judged = block.sent - settling(block.sent)
        assert block.met_share == pytest.approx(in_time.sum() / judged)


@pytest.mark.slow
def test_without_objectives_the_knee_is_where_answers_no_longer_keep_up(tmp_path: Path) -> None:
    make_load(tmp_path, (40, 50, 60, 80, 100, 120), requests=150)
    for mode, seconds in SERVICE.items():
        estimate = knee_of(tmp_path, mode).estimate
        assert estimate.value.low * seconds == pytest.approx(1.0, abs=0.12)
    record = cells(tmp_path, "eager")[120]
    assert record["served_per_second"] == pytest.approx(50, rel=0.05)
    assert record["goodput_per_second"] is None


def test_cutting_every_visit_at_a_rate_puts_the_knee_below_it_without_latency_or_anybody_in_time(
    tmp_path: Path,
) -> None:
    loose = Slo(e2e_seconds=60.0)
    make_load(tmp_path, (20, 40, 120), slo=loose, cut=[(number, "eager") for number in range(1, 9)])
    cut, whole = knee_of(tmp_path, "eager").estimate, knee_of(tmp_path, "inference_mode").estimate
    assert 40 <= cut.value.low < 120
    assert whole.value == Bounds(120.0, float("inf"))
    record = cells(tmp_path, "eager")[120]
    assert record["cut_visits"] == 8
    assert (record["goodput_per_second"], record["attainment"]) == (0.0, 0.0)
    assert record["e2e_p50_seconds"] is None
    assert record["served_per_second"] == pytest.approx(50, rel=0.05)
    at_20 = cells(tmp_path, "eager")[20]
    assert at_20["attainment"] == 1.0
    assert at_20["e2e_p50_seconds"] > 0


def test_refused_requests_are_late_and_have_no_latency(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 200), slo=Slo(e2e_seconds=10.0), most_waiting=4)
    record = cells(tmp_path, "eager")[200]
    assert record["rejected"] > 400
    assert record["failed"] == 0
    assert record["attainment"] < 0.5
    assert record["goodput_per_second"] == pytest.approx(50, rel=0.1)
    assert record["e2e_p99_seconds"] is None or record["e2e_p99_seconds"] < 0.15
    assert record["queue_pollaczek_khinchine_seconds"] is None


def test_the_queues_wait_agrees_with_its_witnesses_and_a_wrong_clock_does_not(
    loaded: Path, tmp_path: Path
) -> None:
    record = cells(loaded, "inference_mode")[60]
    assert record["queue_mean_seconds"] == pytest.approx(record["queue_replayed_seconds"], rel=1e-3)
    assert record["queue_mean_seconds"] == pytest.approx(record["queue_pollaczek_khinchine_seconds"], rel=0.3)
    assert cells(loaded, "eager")[110]["queue_pollaczek_khinchine_seconds"] is None
    make_load(tmp_path, (30,), requests=40)
    edit_rows(tmp_path, lambda row: row.update(queue_seconds=row["queue_seconds"] / 2))
    wrong = cells(tmp_path, "eager")[30]
    assert wrong["queue_mean_seconds_high"] < wrong["queue_replayed_seconds_low"]


def test_merged_requests_have_their_effective_batch_and_no_wait_in_turn(tmp_path: Path) -> None:
    in_turn, merged = (make_load(tmp_path / name, (30,), requests=40) for name in ("in turn", "merged"))

    def merge(row: dict[str, Any]) -> None:
        row["effective_batch"] = 1.0 + row["round"] % 2
        row["sources"] = {**(row.get("sources") or {}), "steps": "shared"}

    edit_rows(merged, merge)
    before, record = (cells(folder, "eager")[30] for folder in (in_turn, merged))
    assert record["effective_batch"] == pytest.approx(1.5)
    assert record["effective_batch_low"] < 1.5 < record["effective_batch_high"]
    assert record["queue_mean_seconds"] == before["queue_mean_seconds"]
    assert record["queue_replayed_seconds"] is record["queue_pollaczek_khinchine_seconds"] is None
    assert before["effective_batch"] is None


def test_visits_too_short_for_the_objective_are_said_with_the_length_that_they_have_to_have(
    tmp_path: Path,
) -> None:
    """Where requests run together it rests on the highest rate served."""
    make_load(tmp_path, (20, 100), slo=Slo(e2e_seconds=0.4), requests=40)
    assert knee_of(tmp_path, "eager").too_short == pytest.approx(400, rel=0.1)
    make_report(tmp_path)
    assert "are too short for this objective" in (tmp_path / "report.md").read_text()
    edit_rows(tmp_path, lambda row: row.update(effective_batch=3.0))
    results.cache_clear()
    found = knee_of(tmp_path, "eager")
    served = max(one.served_rate.value for one in found.cells)
    assert found.too_short == pytest.approx((0.4 * served) ** 2, rel=0.05)


def test_a_visit_that_the_end_of_a_sweep_interrupted_is_left_out(loaded: Path, tmp_path: Path) -> None:
    make_load(tmp_path, (20, 100), slo=IN_TIME, requests=40)
    path = tmp_path / "requests.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))
    assert {one.mode: one.rounds for one in group_of(tmp_path).knees} == {"eager": 8, "inference_mode": 7}


def test_the_tables_are_written_only_where_there_is_load(loaded: Path, tmp_path: Path) -> None:
    knees, rates = (
        list(csv.DictReader((loaded / name).read_text().splitlines())) for name in (KNEES_FILE, LOAD_FILE)
    )
    assert [row["mode"] for row in knees] == list(SERVICE)
    assert knees[1]["knee_least"] == knees[1]["knee_most"]
    assert float(knees[1]["ratio_low"]) > 1.5
    assert len(rates) == 2 * len(NEAR)
    for table, written in ((library.knees(loaded), KNEES_FILE), (library.load(loaded), LOAD_FILE)):
        assert table.equals(pl.read_csv(loaded / written).cast(table.schema))
    stricter = library.knees(loaded, slo="e2e=0.06")
    assert stricter["e2e_seconds"].to_list() == [0.06, 0.06]
    assert (stricter["knee_most"] < library.knees(loaded)["knee_least"]).all()
    with pytest.raises(PlanError, match="give ttft"):
        library.load(loaded, slo="share=0.5")
    make_report(make_results(tmp_path))
    assert not (tmp_path / KNEES_FILE).exists()
    assert "Under load" not in (tmp_path / "report.md").read_text()
