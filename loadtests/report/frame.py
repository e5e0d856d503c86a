"""Rows of `requests.jsonl` as a table: one line per request, one column per field that reports use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import polars as pl

from loadtests.run.rows import ROWS_FILE, RowsError, read_rows

PARTS = ("queue", "dispatch", "kernel", "sync_wait", "other")
"""In the order in which they are stacked."""

PhaseName = Literal["prefill", "decode"]
PHASES: tuple[PhaseName, ...] = ("prefill", "decode")

BLOCK_BYTES = 32 * 2**20
"""So much of a file is parsed at once: a long sweep's rows are larger than the memory for them should be."""

_NEEDED = {
    "cell": pl.String, "round": pl.Int64, "sequence": pl.Int64, "stage": pl.String, "mode": pl.String,
    "control": pl.Boolean, "batch_size": pl.Int64, "prompt_set": pl.String, "new_tokens": pl.Int64,
    "concurrency": pl.Int64, "intended_start": pl.Float64, "start": pl.Float64,
    "latency_seconds": pl.Float64, "latency_from_intended_seconds": pl.Float64, "status": pl.Int64,
}  # fmt: skip
"""Fields that each row has."""

_OPTIONAL = {
    "effective_mode": pl.String, "part": pl.Int64, "load": pl.Float64, "error": pl.String,
    "profiled": pl.Boolean,
    "prompt_tokens": pl.Int64, "completion_tokens": pl.Int64, "padded_prompt_tokens": pl.Int64,
    "attended_tokens": pl.Int64, "involuntary_switches": pl.Int64, "total_seconds": pl.Float64,
    "time_to_first_token_seconds": pl.Float64, "device_span_seconds": pl.Float64,
    **{f"{part}_seconds": pl.Float64 for part in PARTS},
}  # fmt: skip

_PHASE = {
    "steps": pl.Int64, "wall_seconds": pl.Float64, "dispatch_seconds": pl.Float64,
    "dispatch_low_seconds": pl.Float64, "dispatch_high_seconds": pl.Float64, "kernel_seconds": pl.Float64,
    "sync_wait_seconds": pl.Float64, "clipped": pl.Boolean, "minor_faults": pl.Int64,
    "device_span_seconds": pl.Float64, "period_seconds": pl.Float64,
}  # fmt: skip

_SOURCES = pl.Struct({"dispatch": pl.String, "kernel": pl.String})

_JSON: dict[str, pl.DataType | type[pl.DataType]] = {
    **_NEEDED,
    **_OPTIONAL,
    **{phase: pl.Struct(_PHASE) for phase in PHASES},
    "sources": _SOURCES,
}


def read_frame(folder: Path) -> pl.DataFrame:
    """The rows of a results folder; a phase's fields are in columns `prefill_…` and `decode_…`.

    A truncated last line, as a killed sweep leaves it, is left out. Raises RowsError for a missing file or
    any other line that is not a row, which it names.
    """
    try:
        blocks = [_parsed(block, folder) for block in _blocks(folder / ROWS_FILE)]
    except OSError as error:
        raise RowsError(f"no rows in {folder}: {error}; name a folder that a sweep has written") from error
    return pl.concat(blocks) if blocks else _flat(pl.DataFrame(schema=_JSON))


def measured(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows that count: measured, successful, and not slowed down by the profiler."""
    return rows.filter((pl.col("stage") == "measure") & pl.col("ok") & ~pl.col("profiled"))


def _blocks(path: Path) -> Iterator[bytes]:
    """The file's whole lines, some at a time."""
    with path.open("rb") as file:
        rest = b""
        while read := file.read(BLOCK_BYTES):
            lines, newline, rest = (rest + read).rpartition(b"\n")
            if newline:
                yield lines + newline


def _parsed(block: bytes, folder: Path) -> pl.DataFrame:
    """The rows of one block. What does not fit is looked for line by line, which is slow and names it."""
    try:
        frame = pl.read_ndjson(block, schema=_JSON)
        broken = frame.height != block.count(b"\n") or sum(
            frame.select(pl.col(_NEEDED.keys()).null_count()).row(0)
        )
    except pl.exceptions.PolarsError as error:
        read_rows(folder)
        raise RowsError(f"{folder / ROWS_FILE} cannot be read: {error}") from error
    if broken:
        read_rows(folder)
        raise RowsError(f"{folder / ROWS_FILE} has lines that are no rows: sweep again")
    return _flat(frame)


def _flat(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns of the table; texts that repeat in most rows are categories, a tenth of their size."""
    measured = pl.col("sources").struct["dispatch"] == "measured"
    flat = frame.select(
        pl.col([*_NEEDED, *_OPTIONAL]).exclude("status", "error", "profiled", "part"),
        ((pl.col("status") == 200) & pl.col("error").is_null()).alias("ok"),
        (pl.col("status") == 429).alias("rejected"),
        pl.col("profiled").fill_null(False),
        pl.col("part").fill_null(1),
        pl.sum_horizontal(pl.col(phase).struct["steps"] for phase in PHASES).alias("steps"),
        pl.col("sources").struct["kernel"].alias("kernel_source"),
        pl.col("sources").struct["dispatch"].alias("dispatch_source"),
        *[_of_phase(phase, field, measured) for phase in PHASES for field in _PHASE],
    )
    return flat.with_columns(pl.col(pl.String).cast(pl.Categorical), pl.col(pl.Int64).cast(pl.Int32))


def _of_phase(phase: PhaseName, field: str, measured: pl.Expr) -> pl.Expr:
    """One field of a phase; measured dispatch is its own interval, an estimated one has that of its row."""
    values = pl.col(phase).struct
    found = values[field]
    if field in ("dispatch_low_seconds", "dispatch_high_seconds"):
        found = pl.when(measured).then(values["dispatch_seconds"]).otherwise(found)
    return found.alias(f"{phase}_{field}")
