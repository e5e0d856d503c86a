"""What is read back from a results folder: tables, gates, and broken folders."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from statistics import median

import polars as pl
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.report import results
from loadtests.report.findings import Findings
from loadtests.report.report_files import write_csv, write_tables
from loadtests.report.results import frame_of, read_results
from loadtests.run.rows import ROWS_FILE, RowsError, each_row
from tests.support.made_plans import read_rows
from tests.support.made_results import Row, edit_rows, make_results


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
    whole = frame_of(each_row(tmp_path))
    with (tmp_path / ROWS_FILE).open("a") as file:
        file.write('{"run": "a-r')
    monkeypatch.setattr(results, "BLOCK_ROWS", 7)
    assert frame_of(each_row(tmp_path)).equals(whole)
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
