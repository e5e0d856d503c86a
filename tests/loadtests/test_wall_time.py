"""Where the wall time of a sweep went, on rows whose instants are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.plan.cells import Cell, Plan
from loadtests.report.report_files import headline
from loadtests.report.results import Results, read_results
from loadtests.report.verdict import Findings
from loadtests.report.view import view
from loadtests.report.wall_time import wall_time
from loadtests.run.run_file import Part, read_run, write_run
from tests.support.made_results import make_results

CLOSED = Cell(mode="eager", batch_size=1, requests=2)
OPEN = Cell(mode="eager", batch_size=1, requests=3, load=0.5)
PLAN = Plan(preset="own", seed=1, rounds=8, cells=(CLOSED, OPEN))

BEGIN = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""


def made(folder: Path, instants: list[dict[str, Any]], parts: list[Part]) -> Results:
    """A sweep whose rows are only these: each with a start and an end in seconds from BEGIN."""
    run = read_run(make_results(folder, plan=PLAN))
    path = folder / "requests.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    lines = []
    for instant in instants:
        start, end = instant.pop("at")
        due = BEGIN + instant.pop("due", start)
        fields = {"start": BEGIN + start, "intended_start": due, "latency_seconds": end - start, **instant}
        lines.append(json.dumps({"part": 1, "stage": "measure", "round": 1, **row, **fields}))
    path.write_text("\n".join(lines) + "\n")
    run.started, run.parts = "2026-01-01T00:00:00Z", parts
    write_run(folder, run)
    return read_results(folder)


def closed(start: float, end: float, **fields: Any) -> dict[str, Any]:
    return {"cell": CLOSED.name, "load": None, "at": (start, end), **fields}


def test_overlapping_requests_count_once_and_what_lies_between_is_named(tmp_path: Path) -> None:
    rows = [
        closed(10, 12, stage="warmup"),
        closed(14, 24),
        closed(16, 26),
        closed(17, 18),
        closed(28, 34),
        {"cell": OPEN.name, "load": 0.5, "at": (35, 38), "due": 34.5},
        {"cell": OPEN.name, "load": 0.5, "at": (40, 42)},
    ]
    part = Part(
        number=1,
        started="2026-01-01T00:00:01Z",
        ready="2026-01-01T00:00:04Z",
        ended="2026-01-01T00:00:54Z",
    )
    found = wall_time(made(tmp_path, rows, [part]))
    assert (found.total, found.before) == (50.0, 4.0)
    assert found.measured == pytest.approx(12 + 6 + 3 + 2)
    assert found.idle == pytest.approx(2.5)
    assert found.between == pytest.approx(2 + 0.5)
    assert found.warm_up == pytest.approx(4.0)
    assert found.measured_share == pytest.approx(0.46)
    assert found.text == (
        "46 % of 50 s with the service up; warm-up 8 %, waiting for arrivals 5 %, "
        "between requests 5 %, the rest 36 %. Until the service was ready: 4 s"
    )


def test_a_request_whose_steps_are_sampled_is_no_measured_one(tmp_path: Path) -> None:
    rows = [closed(10, 14, stage="sample"), closed(14, 24), closed(25, 30, stage="sample"), closed(30, 40)]
    found = wall_time(made(tmp_path, rows, [Part(number=1, started="2026-01-01T00:00:01Z")]))
    assert (found.measured, found.sampled, found.between) == pytest.approx((20.0, 9.0, 1.0))
    assert found.text.startswith("67 % of 30 s from the first request to the last; sampled requests 30 %")


def test_the_gap_between_two_parts_is_no_time_of_the_sweep(tmp_path: Path) -> None:
    rows = [
        closed(10, 12, stage="warmup"),
        closed(12, 20),
        closed(1000, 1002, stage="warmup", part=2),
        closed(1003, 1010, part=2),
    ]
    killed = Part(number=1, started="2026-01-01T00:00:00Z", ready="2026-01-01T00:00:10Z")
    second = msgspec.structs.replace(
        killed, number=2, started="2026-01-01T00:16:35Z", ready="2026-01-01T00:16:39Z"
    )
    second.ended = "2026-01-01T00:16:59Z"
    found = wall_time(made(tmp_path, rows, [killed, second]))
    assert found.total == pytest.approx((20 - 10) + (1019 - 999))
    assert found.before == pytest.approx(10 + 4)
    assert found.measured == pytest.approx(8 + 7)
    assert found.warm_up == pytest.approx(2 + 3)


def test_a_run_of_before_counts_from_its_first_request_and_says_so(tmp_path: Path) -> None:
    results = read_results(make_results(tmp_path))
    found = wall_time(results)
    assert found.before is None
    assert "from the first request to the last" in found.text
    assert found.measured_share == pytest.approx(1 - found.warm_up / found.total)
    findings = Findings(results)
    assert headline(findings)["measured_share"] == found.measured_share
    assert ("measured requests", found.text) in view(findings)["environment"]
