"""What a report says of the load generator itself."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.report.results import read_results
from loadtests.report.surroundings import reproduce
from loadtests.report.verdict import Findings
from loadtests.report.view import load_side, view
from loadtests.run.run_file import read_run, write_run
from tests.support.made_results import make_results

CLOSED = Cell(mode="eager", batch_size=1)
OPEN = Cell(mode="eager", batch_size=1, load=0.5, requests=100)


def plan(*cells: Cell) -> Plan:
    return Plan(preset="own", seed=1, rounds=1, cells=cells)


def delay(folder: Path) -> None:
    """Have the n-th measured open-loop request leave n ms late, and every request of warm-up 9 s."""
    late = 0
    rows = [msgspec.json.decode(line) for line in (folder / "requests.jsonl").read_bytes().splitlines()]
    for row in rows:
        if row["stage"] == "warmup":
            row["start"] += 9.0
        elif row["load"] is not None:
            row["start"] += 1e-3 * late
            late += 1
    (folder / "requests.jsonl").write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))


def lines(folder: Path) -> dict[str, str]:
    return dict(load_side(read_results(folder)))


def test_the_schedule_delay_is_that_of_the_measured_open_loop_requests(tmp_path: Path) -> None:
    delay(make_results(tmp_path, plan=plan(CLOSED, OPEN)))
    found = lines(tmp_path)["schedule delay"]
    assert found == "p50 49.5 ms, p99 98.0 ms, max 99.0 ms, of 100 open-loop requests"


def test_without_an_open_loop_there_is_no_schedule_delay_and_it_says_so(tmp_path: Path) -> None:
    make_results(tmp_path, plan=plan(CLOSED))
    assert lines(tmp_path)["schedule delay"].startswith("not measured: ")


@pytest.mark.parametrize(
    ("workers", "processes", "cpu"),
    [
        (1, "one process on core 0", "5% of one core"),
        (
            3,
            "3 load processes and their master, all on core 0",
            "5% of one core, of its busiest process or core",
        ),
    ],
)
def test_the_load_generators_processes_and_cpu_are_always_shown(
    tmp_path: Path, workers: int, processes: str, cpu: str
) -> None:
    run = read_run(make_results(tmp_path, plan=plan(CLOSED)))
    run.settings["workers"] = workers
    write_run(tmp_path, run)
    found = lines(tmp_path)
    assert (found["load generator"], found["CPU of the load generator"]) == (processes, cpu)
    assert ("--workers 3" in reproduce(run)[-1]) == (workers == 3)


def test_a_run_of_before_there_were_load_processes_had_one(tmp_path: Path) -> None:
    run = read_run(make_results(tmp_path, plan=plan(CLOSED)))
    run.settings.pop("workers", None)
    run.client.cpu_share = None
    write_run(tmp_path, run)
    found = lines(tmp_path)
    assert found["load generator"].startswith("one process")
    assert found["CPU of the load generator"] == "not known"


def test_the_page_has_these_lines(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path, plan=plan(CLOSED)))
    assert set(load_side(results)) <= set(view(Findings(results))["environment"])
