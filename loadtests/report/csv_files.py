"""The results as files for other programs: cells, summary, load and knees."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.report.findings import Findings
from loadtests.report.load import QUANTILES, SECONDS, LoadCell, LoadFindings
from loadtests.report.summaries import Count, PhaseMeans, Requests
from service.statistics.intervals import Interval
from service.statistics.knee import BoundedEstimate

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What begins a text that a spreadsheet takes for a formula, and runs."""

CELLS_FILE = "cells.csv"
SUMMARY_FILE = "summary.csv"
LOAD_FILE = "load.csv"
KNEES_FILE = "knees.csv"


def write_tables(findings: Findings) -> None:
    """Write all files into the results folder; those of load where it has open-loop cells."""
    folder = findings.results.folder
    write_csv(folder / CELLS_FILE, findings.results.rounds)
    for name, records in (
        (SUMMARY_FILE, summary_records(findings)),
        (LOAD_FILE, load_records(findings.load)),
        (KNEES_FILE, knee_records(findings.load)),
    ):
        table = pl.DataFrame(list(records), infer_schema_length=None)
        if not table.is_empty():
            write_csv(folder / name, table)


def write_csv(path: Path, table: pl.DataFrame) -> None:
    """Write `table` with texts that no spreadsheet takes for a formula; numbers stay numbers."""
    texts = pl.col(pl.String).map_elements(no_formula, return_dtype=pl.String)
    # Written by Python: the OSError that polars raises on a full disk has no errno.
    path.write_text(table.with_columns(texts).write_csv(), encoding="utf-8")


def no_formula(value: object) -> object:
    """`value`, or, of a text that begins as a formula does, with the apostrophe that makes it a text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def summary_records(findings: Findings) -> Iterator[dict[str, Any]]:
    for summary in findings.summaries:
        comparison, plain = summary.comparison, summary.against_plain
        back, cell, decode = summary.payback, summary.cell, summary.decode
        names = ("control", "batch_size", "prompt_set", "new_tokens", "concurrency", "load", "rate")
        yield {
            "cell": cell.name,
            "mode": cell.mode,
            "effective_mode": summary.effective,
            **{name: getattr(cell, name) for name in names},
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
            **_phase(decode),
            "device_bound_index": decode.index,
            "bound": decode.bound,
            **_spread("headroom", decode.headroom),
            "disturbed": summary.disturbed,
            **_spread("speedup", comparison.speedup if comparison else None),
            "word": comparison and comparison.word,
            **_spread("speedup_over_plain", plain.speedup if plain else None),
            "word_against_plain": plain and plain.word,
            **_count("payback_requests", back.requests),
            **_count("cold_payback_requests", back.cold_requests),
            "payback_reference": back.reference,
        }


def _phase(phase: PhaseMeans) -> dict[str, float | None]:
    parts = ("wall", "dispatch", "dispatch_low", "dispatch_high", "kernel", "sync_wait")
    share = phase.interval
    return {
        **{f"{phase.name}_{part}_seconds_mean": getattr(phase, f"{part}_seconds") for part in parts},
        f"{phase.name}_minor_faults_mean": phase.minor_faults,
        f"{phase.name}_index": phase.index,
        f"{phase.name}_index_low": share and share.low,
        f"{phase.name}_index_high": share and share.high,
    }


def _count(name: str, requests: Requests) -> dict[str, int | None]:
    ends = requests if isinstance(requests, Count) else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    ends = (interval.value, interval.low, interval.high) if interval else (None, None, None)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def load_records(findings: LoadFindings) -> Iterator[dict[str, Any]]:
    """One record per open-loop cell; seconds are seconds, null is not known."""
    for one in findings.cells:
        yield {
            "cell": one.cell.name,
            "mode": one.cell.mode,
            "batch_size": one.cell.batch_size,
            "arrivals": one.cell.arrivals,
            "offered_per_second": one.rate,
            "rounds": len(one.blocks),
            "sent": one.sent,
            "rejected": one.rejected,
            "failed": one.failed,
            "cut_visits": one.cut,
            **_finite_spread("served_per_second", one.served_rate),
            **_finite_spread("effective_batch", one.effective_batch),
            **_quantiles(one),
            **_finite_spread("queue_mean_seconds", one.queue_wait),
        }


def _quantiles(one: LoadCell) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for kind, share in product(SECONDS, QUANTILES):
        found |= _finite_spread(f"{kind}_p{100 * share:.0f}_seconds", one.quantiles[kind][share])
    return found


def knee_records(findings: LoadFindings) -> Iterator[dict[str, Any]]:
    """One record per mode and conditions. The knee lies in [knee_least, knee_most]; null: no bound."""
    for (batch, prompts, tokens, arrivals), knees in findings.knees.items():
        for one in knees:
            yield {
                "mode": one.mode,
                "batch_size": batch,
                "prompt_set": prompts,
                "new_tokens": tokens,
                "arrivals": arrivals,
                "rounds": one.rounds,
                **_bounded("knee", one.estimate),
            }


def _finite_spread(name: str, interval: Interval | None) -> dict[str, float | None]:
    return {key: _finite(end) for key, end in _spread(name, interval).items()}


def _bounded(name: str, estimate: BoundedEstimate) -> dict[str, float | None]:
    """Open ends and sides without a bound are null, and all where the interval excludes nothing."""
    keys = (f"{name}_least", f"{name}_most", f"{name}_low", f"{name}_high")
    if not estimate.tells:
        return dict.fromkeys(keys)
    ends = (estimate.value.low, estimate.value.high, estimate.low, estimate.high)
    return {key: _finite(end) if end else None for key, end in zip(keys, ends, strict=True)}


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
