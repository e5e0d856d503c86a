"""What is read back from a results folder: tables, gates, and broken folders."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from statistics import median

import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.report import results
from loadtests.report.csv_files import write_tables
from loadtests.report.findings import Findings
from loadtests.report.results import frame_of, read_results
from loadtests.run.rows import ROWS_FILE, LineWriter, RowsError, each_row, read_rows
from loadtests.run.validation import VALIDATION_FILE
from tests.support.gates import validate
from tests.support.made_results import make_results


def cell_of(findings: Findings, mode: str, batch: int) -> str:
    return next(s.cell.name for s in findings.summaries if (s.cell.mode, s.cell.batch_size) == (mode, batch))


def test_a_round_is_summarised_by_the_median_of_its_requests(tmp_path: Path) -> None:
    findings = Findings(read_results(make_results(tmp_path)))
    name = cell_of(findings, "compiled", 4)
    mine = [r.latency_seconds for r in read_rows(tmp_path) if (r.cell, r.round) == (name, 3)]
    assert findings.results.medians(name)[3] == pytest.approx(median(mine))


def test_warming_up_and_failures_are_in_no_figure(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path, fail=5))
    counted = results.rounds["requests"].sum()
    assert counted == sum(row.stage == "measure" for row in read_rows(tmp_path)) - 5
    assert min(results.rounds["round"]) == 1


def test_profiled_requests_are_in_no_figure(tmp_path: Path) -> None:
    make_results(tmp_path)
    lines = (tmp_path / "requests.jsonl").read_text().splitlines()
    row = json.loads(lines[-1]) | {"profiled": True, "latency_seconds": 1e6, "involuntary_switches": 10**6}
    (tmp_path / "requests.jsonl").write_text("\n".join([*lines[:-1], json.dumps(row)]) + "\n")
    results = read_results(tmp_path)
    assert results.rounds["requests"].sum() == results.run.plan.requests - 1
    assert results.rounds["latency_seconds"].max() < 1e6
    assert not any(summary.disturbed for summary in Findings(results).summaries)
    gate = next(g for g in validate(results.run, read_rows(tmp_path), None, None) if "disturbed" in g.name)
    assert gate.passed


def test_throughput_of_one_request_at_a_time_is_tokens_over_latency(tmp_path: Path) -> None:
    cells = (Cell(mode="eager", batch_size=2, requests=6),)
    results = read_results(make_results(tmp_path, plan=Plan(preset="own", seed=1, rounds=8, cells=cells)))
    rows = [row for row in read_rows(tmp_path) if row.round == 1]
    expected = sum(row.completion_tokens or 0 for row in rows) / sum(row.latency_seconds for row in rows)
    assert results.medians(cells[0].name, "tokens_per_second")[1] == pytest.approx(expected)


def test_more_requests_in_flight_do_not_raise_the_throughput_of_one_engine(tmp_path: Path) -> None:
    """Each takes 0.04 s and waits for those before it; the first of a visit wait for fewer."""
    cell = Cell(mode="eager", batch_size=1, concurrency=8, requests=16)
    make_results(tmp_path, plan=Plan(preset="own", seed=1, rounds=8, cells=(cell,)))
    path = tmp_path / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(row for row in rows if row["stage"] == "measure"):
        index = number % cell.requests
        sent = index - min(index, cell.concurrency - 1)
        row["start"] = row["intended_start"] = 1e9 + 100 * row["round"] + 0.04 * sent
        row["latency_seconds"] = row["latency_from_intended_seconds"] = 0.04 * (index + 1 - sent)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    results = read_results(tmp_path)
    assert results.medians(cell.name, "tokens_per_second")[1] == pytest.approx(32 / 0.04)
    assert results.medians(cell.name)[1] == pytest.approx(8 * 0.04)


def test_open_loop_latency_counts_from_the_intended_start(tmp_path: Path) -> None:
    cells = (Cell(mode="eager", batch_size=1), Cell(mode="eager", batch_size=1, load=0.5))
    make_results(tmp_path, plan=Plan(preset="own", seed=1, rounds=8, cells=cells))
    late = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    for row in late:
        if row["cell"] == cells[1].name:
            row["latency_from_intended_seconds"] = row["latency_seconds"] + 1.0
    (tmp_path / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in late))
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


def test_a_row_is_in_the_file_before_the_next_begins(tmp_path: Path) -> None:
    with LineWriter(tmp_path / ROWS_FILE) as rows:
        rows.write({"a": 1})
        assert (tmp_path / "requests.jsonl").read_text() == '{"a":1}\n'


def test_a_line_cut_off_by_a_kill_is_left_out_and_any_other_broken_line_is_named(tmp_path: Path) -> None:
    make_results(tmp_path)
    path = tmp_path / "requests.jsonl"
    count = len(read_rows(tmp_path))
    whole = path.read_text()
    path.write_text(whole + '{"run": "a-r')
    assert len(read_rows(tmp_path)) == count
    path.write_text('{"run": 3}\n' + whole)
    with pytest.raises(RowsError, match="line 1"):
        read_rows(tmp_path)


def test_rows_are_the_same_whatever_the_size_of_the_blocks_they_are_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_results(tmp_path)
    whole = frame_of(each_row(tmp_path))
    path = tmp_path / "requests.jsonl"
    path.write_text(path.read_text() + '{"run": "a-r')
    monkeypatch.setattr(results, "BLOCK_ROWS", 7)
    assert frame_of(each_row(tmp_path)).equals(whole)
    assert whole.height == len(read_rows(tmp_path)) > 7


@pytest.mark.parametrize(
    "broken",
    [
        '{"run": 3}',
        "no JSON",
        '"latency_seconds": "slow"',
        '"batch_size": "many"',
        '"cell": null',
        '"decode": 3',
    ],
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, broken: str) -> None:
    make_results(tmp_path)
    path = tmp_path / "requests.jsonl"
    lines = path.read_text().splitlines()
    if broken.startswith('"'):
        field = broken.partition(":")[0]
        broken = re.sub(rf'{field}: ?("[^"]*"|\{{[^}}]*\}}|[^,}}]+)', broken, lines[6])
    assert broken != lines[6]
    lines[6] = broken
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(RowsError, match="line 7"):
        read_results(tmp_path)


@pytest.mark.parametrize("spoil", ["missing", "later format", "not json", "no rows"])
def test_a_folder_that_cannot_be_read_is_refused_with_the_remedy(tmp_path: Path, spoil: str) -> None:
    make_results(tmp_path)
    run = tmp_path / "run.json"
    if spoil == "missing":
        run.unlink()
    elif spoil == "later format":
        run.write_text(run.read_text().replace('"format_version": 1', '"format_version": 2'))
    elif spoil == "not json":
        run.write_text("{")
    else:
        (tmp_path / "requests.jsonl").write_text("")
    with pytest.raises(RowsError, match=r"sweep|use the one"):
        read_results(tmp_path)


def failed(folder: Path) -> set[str]:
    """Names of the failed gates in `validation.json`."""
    gates = json.loads((folder / VALIDATION_FILE).read_text())["gates"]
    return {gate["name"] for gate in gates if gate["passed"] is False and not gate["warning"]}


@pytest.mark.parametrize(("switches", "verdict"), [(1, False), (2, True)])
def test_a_cell_is_disturbed_above_one_switch_per_twenty_steps(
    tmp_path: Path, switches: int, verdict: bool
) -> None:
    findings = Findings(read_results(make_results(tmp_path, switches=switches)))
    assert {summary.disturbed for summary in findings.summaries} == {verdict}
    gate = next(gate for gate in findings.results.gates if gate.name == "disturbed cells")
    assert (gate.passed, gate.failed) == (not verdict, False)
    assert ("18 of 18" in gate.detail) is verdict
