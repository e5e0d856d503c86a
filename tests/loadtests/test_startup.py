"""Starts of a service: in which order they are made, and how a table, a page and JSON show them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from launchbound import app
from loadtests.startup import PAGE_FILE, PHASES, STARTUP, Kind, Start, Startup, _in_turn, intervals, table

ENGINE: dict[str, Any] = {
    "model": "tiny", "modes": ["eager", "compiled"], "batch_buckets": [1], "torch": "2.13.0",
    "device_name": "a processor", "threads": 2,
}  # fmt: skip


def start(kind: Kind, number: int, dynamo: float, compiled: int = 0) -> Start:
    seconds = {**dict.fromkeys(PHASES, 0.0), "import": 2.0, "dynamo": dynamo}
    return Start(
        kind=kind,
        number=number,
        seconds=seconds,
        total_seconds=sum(seconds.values()),
        compiled=compiled,
        compiler_runs=1 + 9 * compiled,
        beside_seconds=0.0,
    )


@pytest.fixture
def startup() -> Startup:
    starts = [start("cold", 1, 30.0, 2), start("warm", 1, 1.0), start("warm", 2, 3.0), start("warm", 3, 1.0)]
    return Startup(began="2026-11-28T00:00:00Z", commit={}, engine=ENGINE, starts=starts)


@pytest.mark.parametrize(
    ("cold", "warm", "order"),
    [
        (2, 2, "cold 1, warm 1, cold 2, warm 2"),
        (1, 3, "cold 1, warm 1, warm 2, warm 3"),
        (2, 0, "cold 1, cold 2"),
        (0, 2, "cold 0, warm 1, warm 2"),
    ],
)
def test_cold_and_warm_starts_alternate_and_the_first_warm_one_has_a_cold_one_before_it(
    cold: int, warm: int, order: str
) -> None:
    assert ", ".join(f"{kind} {number}" for kind, number in _in_turn({"cold": cold, "warm": warm})) == order


def test_means_of_the_parts_sum_to_the_mean_of_the_whole(startup: Startup) -> None:
    found = intervals(startup, "warm")
    whole = found.pop("total")
    assert sum(one.value for one in found.values()) == pytest.approx(whole.value)
    assert whole.value == pytest.approx(2.0 + 5.0 / 3)


def test_an_interval_is_of_several_starts_and_never_below_nothing(startup: Startup) -> None:
    dynamo = intervals(startup, "warm")["dynamo"]
    assert dynamo.low == 0.0
    assert dynamo.high > 3.0
    assert math.isinf(intervals(startup, "cold")["dynamo"].high)


def test_the_table_has_every_part_the_whole_and_what_was_compiled(startup: Startup) -> None:
    rows = {str(row[0]): [str(cell) for cell in row[1:]] for row in table(startup).rows}
    assert list(rows)[: len(PHASES)] == [name for name, _ in PHASES.values()]
    assert rows["until it is ready"][0] == "32.0 s"
    assert rows["callables compiled"] == ["2", "0"]
    assert table(startup).heads[1:] == ["cold, of 1", "warm, of 3"]


def test_a_folder_of_starts_is_reported_again_and_printed_as_json(startup: Startup, tmp_path: Path) -> None:
    STARTUP.write(tmp_path, startup)
    done = CliRunner().invoke(app, ["report", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["cold"]["dynamo"] == {"seconds": 30.0, "low": None, "high": None, "samples": 1}
    page = (tmp_path / PAGE_FILE).read_text()
    assert "Ready after 32.0 s (cold) and 3.67 s (warm)" in page
    assert '"name": "AOTAutograd"' in page


def test_no_start_at_all_and_a_folder_in_use_are_bad_input(startup: Startup, tmp_path: Path) -> None:
    none = CliRunner().invoke(app, ["startup", "--cold=0", "--warm=0"])
    assert (none.exit_code, "raise --cold or --warm" in none.stderr) == (2, True)
    STARTUP.write(tmp_path, startup)
    used = CliRunner().invoke(app, ["startup", f"--out={tmp_path}"])
    assert (used.exit_code, "name another folder" in used.stderr) == (2, True)
