"""Results folders as polars tables: what programs and notebooks of one's own may import (docs/sweeps.md)."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from loadtests.compare.builds import compare_builds, document
from loadtests.plan.cells import parse_slo
from loadtests.report.csv_files import knee_records, load_records, summary_records
from loadtests.report.findings import Findings
from loadtests.report.load import LoadFindings
from loadtests.report.results import read_results
from loadtests.run.run_file import SweepRun, read_run

__all__ = ["cells", "comparison", "knees", "load", "requests", "rounds", "run"]


def run(folder: Path | str) -> SweepRun:
    """`run.json`: plan, order, machine, engine and modes. Raises RunError where it cannot be read."""
    return read_run(Path(folder))


def requests(folder: Path | str) -> pl.DataFrame:
    """One row per request, those of warm-up and failed ones too; seconds are seconds, null is not measured.

    Statistics are over `stage == "measure"`, `ok` and not `profiled`. A phase's fields are in columns
    `prefill_…` and `decode_…`. Raises RowsError where the folder holds no results.
    """
    return read_results(folder).rows


def rounds(folder: Path | str) -> pl.DataFrame:
    """One row per cell and round, the unit of replication: median latency, tokens per second, mean parts.

    As `cells.csv`. Raises as `requests`.
    """
    return read_results(folder).rounds


def cells(folder: Path | str) -> pl.DataFrame:
    """One row per cell: latency, throughput, parts, speed-ups and verdicts with their intervals.

    As `summary.csv`. Raises as `requests`.
    """
    records = list(summary_records(Findings(read_results(folder))))
    return pl.DataFrame(records, infer_schema_length=None)


def load(folder: Path | str, *, slo: str | None = None) -> pl.DataFrame:
    """One row per open-loop cell: what was offered, served and in time, latencies and waits with intervals.

    As `load.csv`. `slo`, such as `e2e=0.1,share=0.99` (seconds), takes the place of the plan's objectives.
    Without open-loop cells it is empty. Raises as `requests`, and PlanError for what is no SLO.
    """
    return pl.DataFrame(list(load_records(_load_findings(folder, slo))), infer_schema_length=None)


def knees(folder: Path | str, *, slo: str | None = None) -> pl.DataFrame:
    """One row per mode and conditions: the highest arrival rate that counts as served, and its interval.

    As `knees.csv`; the knee lies in [`knee_least`, `knee_most`], null: no bound. Otherwise as `load`.
    """
    return pl.DataFrame(list(knee_records(_load_findings(folder, slo))), infer_schema_length=None)


def comparison(before: Path | str, after: Path | str, *, force: bool = False) -> pl.DataFrame:
    """One row per cell that both have, as `launchbound compare`: `ratio` is after / before, with its ends.

    Each side is a results folder or a folder of several. Raises Unlike, a RowsError, for runs that are not
    alike, unless `force`, and RowsError where one cannot be read.
    """
    found = document(compare_builds(before, after, force=force))["cells"]
    return pl.DataFrame(found, infer_schema_length=None).unnest("ratio").rename({"value": "ratio"})


def _load_findings(folder: Path | str, slo: str | None) -> LoadFindings:
    return LoadFindings(read_results(folder), None if slo is None else parse_slo(slo))
