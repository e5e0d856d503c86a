"""Plans, rows and reports in one call each, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loadtests.plan.cells import Plan
from loadtests.plan.plan_file import plan_of
from loadtests.plan.presets import Preset, overridden, preset_documents
from loadtests.report.findings import Findings
from loadtests.report.report_files import write_report
from loadtests.report.results import read_results
from loadtests.run.rows import RequestRow, each_row


def make_plan(
    preset: Preset, seed: int = 0, modes: list[str] | None = None, batch_sizes: list[int] | None = None
) -> Plan:
    return plan_of(overridden(preset_documents(preset)[0], seed, modes, batch_sizes))


def read_rows(folder: Path) -> list[RequestRow]:
    return list(each_row(folder))


def make_report(folder: Path) -> dict[str, Any]:
    return write_report(Findings(read_results(folder)))
