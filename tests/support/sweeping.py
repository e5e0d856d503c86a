"""Sweeps of the stand-in for the service, by this process."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtests.plan.cells import Plan
from loadtests.run.sweep import SweepResult, run_sweep
from tests.support.fake_service import Script, fake_service


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
