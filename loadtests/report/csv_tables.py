"""The results as files for other programs: `cells.csv` (per cell and round) and `summary.csv` (per cell)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from loadtests.report.verdict import Findings
from service.statistics.boundedness import bound
from service.statistics.intervals import Interval

CELLS_FILE = "cells.csv"
SUMMARY_FILE = "summary.csv"


def write_tables(findings: Findings) -> None:
    """Write both files into the results folder."""
    results = findings.results
    results.rounds.write_csv(results.folder / CELLS_FILE)
    summary = pl.DataFrame(list(summary_records(findings)), infer_schema_length=None)
    summary.write_csv(results.folder / SUMMARY_FILE)


def summary_records(findings: Findings) -> Iterator[dict[str, Any]]:
    """`summary.csv`, one record per cell."""
    for summary in findings.summaries:
        comparison = summary.comparison
        cell = summary.cell
        yield {
            "cell": cell.name,
            "mode": cell.mode,
            "effective_mode": summary.effective,
            "control": cell.control,
            "batch_size": cell.batch_size,
            "prompt_set": cell.prompt_set,
            "new_tokens": cell.new_tokens,
            "concurrency": cell.concurrency,
            "load": cell.load,
            "requests": summary.requests,
            "rounds": summary.latency.samples,
            **_spread("latency_seconds", summary.latency),
            "latency_p95_seconds": summary.latency_p95_seconds,
            **_spread("tokens_per_second", summary.tokens_per_second),
            **{f"{part}_seconds_mean": value for part, value in summary.parts.items()},
            "total_seconds_mean": summary.total_seconds,
            "outside_seconds_mean": summary.outside_seconds,
            "device_bound_index": summary.index,
            "bound": bound(summary.index),
            "disturbed": summary.disturbed,
            **_spread("speedup", comparison.speedup if comparison else None),
            "noise_factor": comparison.noise if comparison else None,
            "word": comparison.word if comparison else None,
            "payback_requests": summary.payback if isinstance(summary.payback, int) else None,
        }


def _spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
