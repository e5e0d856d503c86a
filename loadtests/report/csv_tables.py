"""The results as files for other programs: `cells.csv` (per cell and round) and `summary.csv` (per cell)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.report.payback import Count, Requests
from loadtests.report.phases import PhaseMeans
from loadtests.report.verdict import Findings
from service.statistics.intervals import Interval

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What begins a text that a spreadsheet takes for a formula, and runs."""

CELLS_FILE = "cells.csv"
SUMMARY_FILE = "summary.csv"


def write_tables(findings: Findings) -> None:
    """Write both files into the results folder."""
    results = findings.results
    summary = pl.DataFrame(list(summary_records(findings)), infer_schema_length=None)
    for name, table in ((CELLS_FILE, results.rounds), (SUMMARY_FILE, summary)):
        write_csv(results.folder / name, table)


def write_csv(path: Path, table: pl.DataFrame) -> None:
    """Write `table` with texts that no spreadsheet takes for a formula; numbers stay numbers."""
    texts = pl.col(pl.String).map_elements(no_formula, return_dtype=pl.String)
    # Written by Python: the OSError that polars raises on a full disk has no errno.
    path.write_text(table.with_columns(texts).write_csv(), encoding="utf-8")


def no_formula(value: object) -> object:
    """`value`, or, of a text that begins as a formula does, with the apostrophe that makes it a text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def summary_records(findings: Findings) -> Iterator[dict[str, Any]]:
    """`summary.csv`, one record per cell."""
    for summary in findings.summaries:
        comparison = summary.comparison
        plain, back, cell = summary.against_plain, summary.payback, summary.cell
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
            "rate": cell.rate,
            "requests": summary.requests,
            "rounds": summary.latency.samples,
            **_spread("latency_seconds", summary.latency),
            "latency_p95_seconds": summary.latency_p95_seconds,
            **_spread("tokens_per_second", summary.tokens_per_second),
            **{f"{part}_seconds_mean": value for part, value in summary.parts.items()},
            "total_seconds_mean": summary.total_seconds,
            "outside_seconds_mean": summary.outside_seconds,
            "mean_less_typical_seconds": summary.skew_seconds,
            **_spread("time_to_first_token_seconds", summary.first_token),
            **_phase(summary.prefill),
            **_phase(summary.decode),
            "device_bound_index": summary.decode.index,
            "bound": summary.decode.bound,
            **_spread("headroom", summary.decode.headroom),
            "disturbed": summary.disturbed,
            **_spread("speedup", comparison.speedup if comparison else None),
            "word": comparison.word if comparison else None,
            **_spread("speedup_over_plain", plain.speedup if plain else None),
            "word_against_plain": plain.word if plain else None,
            **_count("payback_requests", back.requests),
            **_count("cold_payback_requests", back.cold_requests),
            "payback_reference": back.reference,
        }


def _phase(phase: PhaseMeans) -> dict[str, float | None]:
    parts = ("wall", "dispatch", "dispatch_low", "dispatch_high", "kernel", "sync_wait")
    return {
        **{f"{phase.name}_{part}_seconds_mean": getattr(phase, f"{part}_seconds") for part in parts},
        f"{phase.name}_minor_faults_mean": phase.minor_faults,
        f"{phase.name}_index": phase.index,
        f"{phase.name}_index_low": phase.interval.low if phase.interval else None,
        f"{phase.name}_index_high": phase.interval.high if phase.interval else None,
    }


def _count(name: str, requests: Requests) -> dict[str, int | None]:
    found = requests if isinstance(requests, Count) else None
    ends = (None, None, None) if found is None else (found.typical, found.least, found.most)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}
