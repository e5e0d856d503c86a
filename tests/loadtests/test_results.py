"""What is read back from a results folder: tables, load, the machine, gates, and broken folders."""

from __future__ import annotations

import csv
import json
import os
import shutil
from functools import cache
from pathlib import Path
from statistics import median

import polars as pl
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.report import results
from loadtests.report.findings import Findings
from loadtests.report.load import LoadCell, ModeKnee
from loadtests.report.load_section import load_tables
from loadtests.report.report_files import write_csv, write_tables
from loadtests.report.results import Results, frame_of, read_results
from loadtests.report.surroundings import environment
from loadtests.run.machine import clocks_query, clocks_summary, watched
from loadtests.run.rows import ROWS_FILE, RowsError, each_row
from loadtests.run.run_file import Part, read_run, write_run
from loadtests.run.target import Target
from service.front.machine import gpus
from service.nvml import MIG_NOTE
from service.records import PHASES
from service.statistics.intervals import Bounds
from tests.support import fake_nvml
from tests.support.made_plans import make_report, read_rows
from tests.support.made_results import SERVICE, Row, edit_rows, make_load, make_results
from tests.support.serving import until

LINES = """\
GPU-a,1980,2619,310.5,41,0x0,2026/11/24 10:00:00.000000,90,1000.0,0
GPU-a,1200,2619,690.0,71,0x24,2026/11/24 10:00:01.000000,100,1500.0,0
GPU-b,,2619,,30,,2026/11/24 10:00:02.000000,,,1
GPU-a,210,405,70.1,30,0x1,2026/11/24 10:00:03.000000,0,1700.0,0
GPU-c,210,405,69.9,30,0x1,2026/11/24 10:00:04.000000,0,1.0,0
not a line
GPU-a,1755,2619,500.0,60,0x4,2026/11/24 10:00:06.000000,98,3000.0,0
GPU-a,1755,26"""


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For processes that are started meanwhile: the package, of a machine with one GPU."""
    shutil.copy(fake_nvml.__file__, tmp_path / "pynvml.py")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")


def test_without_nvml_the_reason_is_said_and_the_section_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pynvml.py").write_text("raise ModuleNotFoundError")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path.cwd()}")
    command, why = clocks_query()
    assert (command, why) == ([], "the package nvidia-ml-py is not installed")
    with watched(command, tmp_path / "clocks.csv"):
        pass
    assert not (tmp_path / "clocks.csv").exists()
    assert gpus() == []


@pytest.mark.usefixtures("gpu")
def test_samples_are_taken_for_as_long_as_the_section_runs(tmp_path: Path) -> None:
    command, why = clocks_query()
    assert why is None
    file = tmp_path / "clocks.csv"
    with watched(command, file):
        until(lambda: file.read_text().count("\n") > 2, "samples")
    (found,) = clocks_summary(file)
    assert found["samples"] > 2
    assert found["power.draw"]["median"] == 310.5
    assert found["joules"] == 250.0 * (found["samples"] - 1)
    assert gpus()[0]["name"] == "NVIDIA H100 80GB HBM3"


def test_a_sweep_s_samples_stand_in_its_report_with_what_lowered_the_clocks(tmp_path: Path) -> None:
    (tmp_path / "clocks.csv").write_text(LINES)
    run = read_run(make_results(tmp_path))
    run.parts = [Part(number=1, started="")]
    run.parts[0].gpus = clocks_summary(tmp_path / "clocks.csv")
    write_run(tmp_path, run)
    results = read_results(tmp_path)
    shown = [text for label, text in environment(results.run) if label == "GPU while measured"]
    assert len(shown) == 3
    assert "1755 MHz SM (1200 to 1980)" in shown[0]
    assert "98 % of the time at work (90 to 100), 2000 J in 6 s;" in shown[0]
    assert (
        "clocks lowered by software power cap, software thermal slowdown; 3 samples, 1 more of an idle GPU"
        in shown[0]
    )
    assert "clocks never lowered" in shown[1]
    assert shown[1].endswith(f"; {MIG_NOTE}")
    assert shown[2] == "no numbers; never at work; 0 samples, 1 more of an idle GPU left out"


@pytest.mark.parametrize(("url", "local"), [("http://127.0.0.1:8000", True), ("http://gpu-7:8000", False)])
def test_only_a_service_on_this_machine_has_this_machine_s_gpus(url: str, local: bool) -> None:
    assert Target(url).is_local is local


@cache
def read_once(folder: Path) -> Results:
    """Those of a folder that changes no more."""
    return read_results(folder)


def knees_of(folder: Path) -> dict[str, ModeKnee]:
    (knees,) = Findings(read_once(folder)).load.knees.values()
    return {one.mode: one for one in knees}


def said(folder: Path) -> dict[str, str]:
    """The table of knees: by mode its knee."""
    knees, *_ = load_tables(Findings(read_once(folder)).load)
    return {row[0].text: str(row[1]) for row in knees.rows}


def cells(folder: Path, mode: str) -> dict[float, LoadCell]:
    """By their rate."""
    return {one.rate: one for one in Findings(read_once(folder)).load.cells if one.cell.mode == mode}


def test_a_ladder_below_the_knee_says_at_least_and_one_above_it_says_below(tmp_path: Path) -> None:
    slow, fast = make_load(tmp_path / "slow", (5, 10)), make_load(tmp_path / "fast", (150, 200))
    assert said(fast)["eager"] == "below 150"
    assert knees_of(slow)["eager"].estimate.value == Bounds(10.0, float("inf"))


def test_rounds_that_exclude_no_rate_give_no_knee(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40), requests=8, rounds=2)
    assert said(tmp_path)["eager"] == "– (no rate is excluded: more requests or rounds would)"


@pytest.mark.slow
def test_the_knee_is_where_answers_no_longer_keep_up(tmp_path: Path) -> None:
    make_load(tmp_path, (40, 50, 60, 80, 100, 120), requests=150)
    for mode, seconds in SERVICE.items():
        estimate = knees_of(tmp_path)[mode].estimate
        assert estimate.value.low * seconds == pytest.approx(1.0, abs=0.12)
        assert estimate.low <= estimate.value.low <= estimate.high
    assert cells(tmp_path, "eager")[120].served_rate.value == pytest.approx(50, rel=0.05)


def test_cutting_every_block_at_a_rate_puts_the_knee_below_it_and_leaves_no_latency(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 40, 120), cut=[(number, "eager") for number in range(1, 9)])
    assert knees_of(tmp_path)["eager"].estimate.value.high < 120
    cut = cells(tmp_path, "eager")[120]
    assert (cut.cut, cut.quantiles["e2e"][0.5]) == (8, None)
    assert cut.served_rate.value == pytest.approx(50, rel=0.05)
    assert cells(tmp_path, "eager")[20].quantiles["e2e"][0.5].value > 0


def test_refused_requests_have_no_latency(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 200), most_waiting=4)
    found = cells(tmp_path, "eager")[200]
    assert found.rejected > 400
    assert found.served_rate.value == pytest.approx(50, rel=0.1)
    assert found.quantiles["e2e"][0.5].value < 0.15


def test_merged_requests_have_their_effective_batch(tmp_path: Path) -> None:
    in_turn, merged = (make_load(tmp_path / name, (30,), requests=40) for name in ("in turn", "merged"))
    edit_rows(merged, lambda row: row.update(effective_batch=1.0 + row["round"] % 2))
    before, after = (cells(folder, "eager")[30] for folder in (in_turn, merged))
    batch = after.effective_batch
    assert batch.value == pytest.approx(1.5)
    assert batch.low < 1.5 < batch.high
    assert after.queue_wait.value == before.queue_wait.value > 0
    assert before.effective_batch is None


def test_a_block_that_the_end_of_a_sweep_interrupted_is_left_out(tmp_path: Path) -> None:
    make_load(tmp_path, (20, 100), requests=40)
    path = tmp_path / "requests.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    ended = max(
        n for n, line in enumerate(rows) if '"mode": "inference_mode"' in line and '"rate": 100' in line
    )
    path.write_text("".join(rows[: ended - 4] + rows[ended + 1 :]))
    assert {mode: one.rounds for mode, one in knees_of(tmp_path).items()} == {"eager": 8, "inference_mode": 7}


def test_load_has_a_section_only_where_there_is_some(tmp_path: Path) -> None:
    for folder, told in (
        (make_load(tmp_path / "loaded", (20, 40)), True),
        (make_results(tmp_path / "no"), False),
    ):
        make_report(folder)
        text = (folder / "report.md").read_text()
        assert ("Under load" in text) == ("of the rate offered or more" in text) == told


def plan_of(*cells: Cell) -> Plan:
    return Plan(preset="own", seed=1, rounds=8, cells=cells)


def test_a_round_is_summarised_by_the_median_of_its_requests(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path))
    name = "compiled b=4 short n=32 c=1"
    mine = [r.latency_seconds for r in read_rows(tmp_path) if (r.cell, r.round) == (name, 3)]
    assert results.medians(name)[3] == pytest.approx(median(mine))


def test_warming_up_and_failures_are_in_no_figure(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path, fail=5))
    counted = results.rounds["requests"].sum()
    assert counted == sum(row.stage == "measure" for row in read_rows(tmp_path)) - 5
    assert min(results.rounds["round"]) == 1


def test_profiled_requests_are_in_no_figure(tmp_path: Path) -> None:
    def profile(row: Row) -> None:
        if (row["round"], row["cell"], row["index"]) == (8, "compiled b=4 short n=32 c=1", 1):
            row |= {"profiled": True, "latency_seconds": 1e6, "involuntary_switches": 10**6}

    edit_rows(make_results(tmp_path), profile)
    results = read_results(tmp_path)
    assert results.rounds["requests"].sum() == results.run.plan.requests - 1
    assert results.rounds["latency_seconds"].max() < 1e6
    assert not any(summary.disturbed for summary in Findings(results).summaries)
    assert next(gate for gate in results.gates if gate.name == "disturbed cells").passed


def test_throughput_of_one_request_at_a_time_is_tokens_over_latency(tmp_path: Path) -> None:
    cell = Cell(mode="eager", batch_size=2, requests=6)
    results = read_results(make_results(tmp_path, plan=plan_of(cell)))
    rows = [row for row in read_rows(tmp_path) if row.round == 1]
    expected = sum(row.completion_tokens or 0 for row in rows) / sum(row.latency_seconds for row in rows)
    assert results.medians(cell.name, "tokens_per_second")[1] == pytest.approx(expected)


def test_more_requests_in_flight_do_not_raise_the_throughput_of_one_engine(tmp_path: Path) -> None:
    """Each takes 0.04 s and waits for those before it; the first of a visit wait for fewer."""
    cell = Cell(mode="eager", batch_size=1, concurrency=8, requests=16)

    def in_turn(row: Row) -> None:
        sent = row["index"] - min(row["index"], cell.concurrency - 1)
        row["start"] = row["intended_start"] = 1e9 + 100 * row["round"] + 0.04 * sent
        row["latency_seconds"] = row["latency_from_intended_seconds"] = 0.04 * (row["index"] + 1 - sent)

    edit_rows(make_results(tmp_path, plan=plan_of(cell)), in_turn)
    results = read_results(tmp_path)
    assert results.medians(cell.name, "tokens_per_second")[1] == pytest.approx(32 / 0.04)
    assert results.medians(cell.name)[1] == pytest.approx(8 * 0.04)


def test_open_loop_latency_counts_from_the_intended_start(tmp_path: Path) -> None:
    cells = (Cell(mode="eager", batch_size=1), Cell(mode="eager", batch_size=1, load=0.5))

    def late(row: Row) -> None:
        if row["cell"] == cells[1].name:
            row["latency_from_intended_seconds"] += 1.0

    edit_rows(make_results(tmp_path, plan=plan_of(*cells)), late)
    results = read_results(tmp_path)
    assert results.medians(cells[0].name)[1] < 1 < results.medians(cells[1].name)[1]


def test_csv_files_have_a_line_per_cell_and_round_and_per_cell(tmp_path: Path) -> None:
    findings = Findings(read_results(make_results(tmp_path)))
    write_tables(findings)
    cells = list(csv.DictReader((tmp_path / "cells.csv").read_text().splitlines()))
    summary = list(csv.DictReader((tmp_path / "summary.csv").read_text().splitlines()))
    assert len(cells) == 18 * 8
    assert len(summary) == 18
    compiled = next(r for r in summary if r["mode"] == "compiled" and r["batch_size"] == "1")
    assert float(compiled["speedup"]) == pytest.approx(2.5, rel=0.05)
    assert (compiled["word"], compiled["rounds"]) == ("faster", "8")


def test_a_line_cut_off_by_a_kill_is_left_out_whatever_the_size_of_the_blocks_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_results(tmp_path)
    whole = frame_of(each_row(tmp_path), PHASES)
    with (tmp_path / ROWS_FILE).open("a") as file:
        file.write('{"run": "a-r')
    monkeypatch.setattr(results, "BLOCK_ROWS", 7)
    assert frame_of(each_row(tmp_path), PHASES).equals(whole)
    assert whole.height == len(read_rows(tmp_path)) > 7


@pytest.mark.parametrize(
    ("field", "value"),
    [("run", 3), ("latency_seconds", "slow"), ("batch_size", "many"), ("cell", None), ("decode", 3)],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, field: str, value: object) -> None:
    path = make_results(tmp_path) / ROWS_FILE
    lines = path.read_text().splitlines()
    for broken in (json.dumps(json.loads(lines[6]) | {field: value}), "no JSON"):
        path.write_text("\n".join([*lines[:6], broken, *lines[7:]]) + "\n")
        with pytest.raises(RowsError, match="line 7"):
            read_results(tmp_path)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("run.json", None, ""),
        ("run.json", '"format_version": 1', '"format_version": 2'),
        (ROWS_FILE, "\n", ""),
    ],
    ids=["missing", "later format", "no rows"],
)
def test_a_folder_that_cannot_be_read_is_refused_with_the_remedy(
    tmp_path: Path, file: str, old: str | None, new: str
) -> None:
    path = make_results(tmp_path) / file
    text = path.read_text()
    path.unlink()
    if old is not None:
        path.write_text(text.replace(old, new))
    with pytest.raises(RowsError, match=r"sweep|use the one"):
        read_results(tmp_path)


@pytest.mark.parametrize(("switches", "verdict"), [(1, False), (2, True)])
def test_a_cell_is_disturbed_above_one_switch_per_twenty_steps(
    tmp_path: Path, switches: int, verdict: bool
) -> None:
    findings = Findings(read_results(make_results(tmp_path, switches=switches)))
    assert {summary.disturbed for summary in findings.summaries} == {verdict}
    gate = next(gate for gate in findings.results.gates if gate.name == "disturbed cells")
    assert (gate.passed, gate.failed) == (not verdict, False)
    assert ("18 of 18" in gate.detail) is verdict


def test_no_text_of_a_csv_file_begins_as_a_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "a=1", None]
    table = pl.DataFrame({"text": texts, "number": [-1.5] * len(texts), "whole": range(-len(texts), 0)})
    write_csv(tmp_path / "x.csv", table)
    found = pl.read_csv(tmp_path / "x.csv")
    assert found["text"].to_list() == [*(f"'{text}" for text in texts[:7]), *texts[7:]]
    assert found.drop("text").equals(table.drop("text"))
