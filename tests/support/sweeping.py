"""Sweeps of the stand-in for the service, by this process or by one that is killed, and their gates."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtests.plan.cells import Cell, Plan
from loadtests.report.results import read_results
from loadtests.run.gates import CheckedRows, Gate
from loadtests.run.rows import ROWS_FILE, RequestRow
from loadtests.run.run_file import SweepRun
from loadtests.run.sweep import SweepResult, resume_sweep, run_sweep
from tests.support.fake_service import Script, fake_service
from tests.support.made_plans import read_rows
from tests.support.serving import PATIENCE_SECONDS, until


def swept(
    folder: Path, script: Script, plan: Plan, out: io.StringIO | None = None, workers: int = 1
) -> SweepResult:
    """The sweep by `plan` of a service that behaves by `script`; printed into `out`."""
    console = Console(file=out or io.StringIO())
    with fake_service(script) as url:
        return run_sweep(url, plan, folder, console=console, exporter_port=0, workers=workers)


CLIENT_CPU = "client CPU < 80%"
"""Has no meaning against a stand-in that answers at once."""

OF_TIME = {CLIENT_CPU, "achieved/target rate ≥ 0.98"}
"""Have none in an open loop beside other tests."""


def failed(result: SweepResult) -> set[str]:
    """The names of the failed gates."""
    return {gate.name for gate in result.failed}


def raw_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows with all their fields."""
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def validate(run: SweepRun, rows: Iterable[RequestRow], before: str | None, after: str | None) -> list[Gate]:
    """The gates of `run` and its `rows`, which are in no folder."""
    checked = CheckedRows()
    for row in rows:
        checked.add(row)
    return checked.gates(run, [(before, after)])


PLAN = Plan(
    preset="own",
    seed=5,
    rounds=8,
    cells=(
        Cell(mode="eager", batch_size=1, new_tokens=4, requests=2),
        Cell(mode="eager", batch_size=1, new_tokens=4, requests=2, control=True),
        Cell(mode="compiled", batch_size=1, new_tokens=4, requests=2),
        Cell(mode="reduce-overhead", batch_size=4, new_tokens=4, requests=4, concurrency=2),
        Cell(mode="eager", batch_size=1, new_tokens=4, requests=3, load=0.5),
    ),
)

SIZE_BYTES = 150_000
"""About the bytes of all its rows."""

_PROCESS = """
import io, sys
from pathlib import Path
from rich.console import Console
from loadtests.run import target
from loadtests.run.sweep import resume_sweep, run_sweep
from tests.support.sweeping import PLAN
target.COUNTED_WITHIN_SECONDS = 0.2
url, folder, verb = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
options = {"console": Console(file=io.StringIO()), "exporter_port": 0}
run_sweep(url, PLAN, folder, **options) if verb == "begin" else resume_sweep(url, folder, **options)
"""


def start(url: str, folder: Path, verb: str) -> subprocess.Popen[str]:
    """A sweep of PLAN into `folder` by a process of its own; `verb`: begin or resume."""
    command = [sys.executable, "-c", _PROCESS, url, str(folder), verb]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def resumed(url: str, folder: Path) -> SweepResult:
    """Go on with the sweep of `folder` in this process."""
    return resume_sweep(url, folder, console=Console(file=io.StringIO()), exporter_port=0)


def kill_at(process: subprocess.Popen[str], folder: Path, size_bytes: int) -> bool:
    """SIGKILL the sweep once its rows have that many bytes; False where it ended before."""
    path = folder / ROWS_FILE

    def reached() -> bool:
        return process.poll() is not None or (path.exists() and path.stat().st_size >= size_bytes)

    until(reached, f"{size_bytes} bytes of rows", seconds=6 * PATIENCE_SECONDS)
    ended = process.poll() is not None
    process.kill()
    process.communicate()
    return not ended


def measured(folder: Path) -> Counter[tuple[int, str, int | None]]:
    """How often each measured request (round, cell, index) has a row."""
    rows = [row for row in read_rows(folder) if row.stage == "measure"]
    return Counter((row.round, row.cell, row.index) for row in rows)


def every_request_of(plan: Plan) -> Counter[tuple[int, str, int | None]]:
    """Each request of `plan` once."""
    numbers = range(1, plan.rounds + 1)
    return Counter(
        (n, cell.name, index) for n in numbers for cell in plan.cells for index in range(cell.requests)
    )


def failed_gates(folder: Path) -> set[str]:
    """The failed gates of what is in `folder`, but for those of time."""
    return {gate.name for gate in read_results(folder).failed_gates} - OF_TIME
