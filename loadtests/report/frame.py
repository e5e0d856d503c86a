"""Rows of `requests.jsonl` as a table: one line per request, one column per field that reports use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import polars as pl

from loadtests.run.rows import RequestRow, RowPhase

PARTS = ("queue", "dispatch", "kernel", "sync_wait", "other")
"""In the order in which they are stacked."""

PhaseName = Literal["prefill", "decode"]
PHASES: tuple[PhaseName, ...] = ("prefill", "decode")

_ROW = {
    "cell": pl.String, "round": pl.Int64, "part": pl.Int64, "sequence": pl.Int64, "stage": pl.String,
    "mode": pl.String, "effective_mode": pl.String, "control": pl.Boolean, "batch_size": pl.Int64,
    "prompt_set": pl.String, "new_tokens": pl.Int64, "concurrency": pl.Int64, "load": pl.Float64,
    "intended_start": pl.Float64, "start": pl.Float64, "latency_seconds": pl.Float64,
    "latency_from_intended_seconds": pl.Float64,
    "ok": pl.Boolean, "profiled": pl.Boolean, "prompt_tokens": pl.Int64, "completion_tokens": pl.Int64,
    "padded_prompt_tokens": pl.Int64, "attended_tokens": pl.Int64, "steps": pl.Int64,
    "involuntary_switches": pl.Int64, "kernel_source": pl.String,
    "total_seconds": pl.Float64, "time_to_first_token_seconds": pl.Float64,
    **{f"{part}_seconds": pl.Float64 for part in PARTS},
}  # fmt: skip

_PHASE = {
    "steps": pl.Int64, "wall_seconds": pl.Float64, "dispatch_seconds": pl.Float64,
    "dispatch_low_seconds": pl.Float64, "dispatch_high_seconds": pl.Float64, "kernel_seconds": pl.Float64,
    "sync_wait_seconds": pl.Float64, "clipped": pl.Boolean, "minor_faults": pl.Int64,
}  # fmt: skip

_SCHEMA = {
    **_ROW,
    "dispatch_source": pl.String,
    **{f"{phase}_{name}": kind for phase in PHASES for name, kind in _PHASE.items()},
}


def frame_of(rows: Iterable[RequestRow]) -> pl.DataFrame:
    """Rows as a table; a phase's fields are in columns `prefill_…` and `decode_…`."""
    return pl.DataFrame([_values(row) for row in rows], schema=_SCHEMA, orient="row")


def measured(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows that count: measured, successful, and not slowed down by the profiler."""
    return rows.filter((pl.col("stage") == "measure") & pl.col("ok") & ~pl.col("profiled"))


def _values(row: RequestRow) -> tuple[Any, ...]:
    source = row.sources.dispatch if row.sources else None
    phases = [_phase_values(phase, source) for phase in (row.prefill, row.decode)]
    return (*(getattr(row, column) for column in _ROW), source, *phases[0], *phases[1])


def _phase_values(phase: RowPhase | None, source: str | None) -> list[Any]:
    """The fields of a phase; measured dispatch is its own interval, an estimated one has that of its row."""
    if phase is None:
        return [None] * len(_PHASE)
    values = {name: getattr(phase, name) for name in _PHASE}
    if source == "measured":
        values["dispatch_low_seconds"] = values["dispatch_high_seconds"] = phase.dispatch_seconds
    return list(values.values())
