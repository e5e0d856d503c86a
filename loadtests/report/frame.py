"""Rows of `requests.jsonl` as a table: one line per request, one column per field that reports use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter
from types import SimpleNamespace

import polars as pl

from loadtests.run.rows import RequestRow, RowSources
from service.records import PHASES, SIDES

PARTS = ("queue", "dispatch", "kernel", "sync_wait", "other")
"""In the order in which they are stacked."""


BLOCK_ROWS = 1000
"""So many rows are objects at a time: few enough to stay in the processor's cache."""

_Type = type[pl.DataType]

_FIELDS: dict[str, _Type] = {
    "cell": pl.Categorical, "round": pl.Int32, "sequence": pl.Int32, "stage": pl.Categorical,
    "mode": pl.Categorical, "control": pl.Boolean, "batch_size": pl.Int32, "prompt_set": pl.Categorical,
    "new_tokens": pl.Int32, "concurrency": pl.Int32, "intended_start": pl.Float64, "start": pl.Float64,
    "latency_seconds": pl.Float64, "latency_from_intended_seconds": pl.Float64,
    "effective_mode": pl.Categorical, "picked_mode": pl.Categorical,
    "load": pl.Float64, "rate": pl.Float64, "prompt_tokens": pl.Int32,
    "completion_tokens": pl.Int32, "padded_prompt_tokens": pl.Int32, "attended_tokens": pl.Int32,
    "involuntary_switches": pl.Int32, "total_seconds": pl.Float64, "time_to_first_token_seconds": pl.Float64,
    "device_span_seconds": pl.Float64, **{f"{part}_seconds": pl.Float64 for part in PARTS},
    "ok": pl.Boolean, "rejected": pl.Boolean, "profiled": pl.Boolean, "part": pl.Int32, "steps": pl.Int32,
    "merged": pl.Boolean, "effective_batch": pl.Float64,
}  # fmt: skip
"""Fields and properties of a row. Texts that repeat in most rows are categories, a tenth of their size."""

_PHASE: dict[str, _Type] = {
    "steps": pl.Int32, "wall_seconds": pl.Float64, "dispatch_seconds": pl.Float64,
    "dispatch_low_seconds": pl.Float64, "dispatch_high_seconds": pl.Float64, "kernel_seconds": pl.Float64,
    "sync_wait_seconds": pl.Float64, "minor_faults": pl.Int32,
    "samples_of": pl.Categorical, **{f"{side}_samples": pl.Int32 for side in SIDES},
    "device_span_seconds": pl.Float64, "period_seconds": pl.Float64,
}  # fmt: skip
"""Fields of a phase, in columns `prefill_…` and `decode_…`."""
_NO_PHASE = SimpleNamespace(**dict.fromkeys(_PHASE))
"""Of a request that failed: all its columns are null."""

_SOURCES: dict[str, _Type] = {"kernel": pl.Categorical, "dispatch": pl.Categorical}
_NO_SOURCES = RowSources()


def frame_of(rows: Iterable[RequestRow]) -> pl.DataFrame:
    """The table of `rows`, which are read once and not kept."""
    tables = list(_tables(iter(rows)))
    return pl.concat(tables or [_table([])]).with_columns(_interval_of_measured())


def measured(rows: pl.LazyFrame) -> pl.LazyFrame:
    """The rows that count: measured, successful, and not slowed down by the profiler."""
    return rows.filter((pl.col("stage") == "measure") & pl.col("ok") & ~pl.col("profiled"))


def _tables(rows: Iterator[RequestRow]) -> Iterator[pl.DataFrame]:
    while block := list(islice(rows, BLOCK_ROWS)):
        yield _table(block)


def _table(rows: Sequence[RequestRow]) -> pl.DataFrame:
    sources = [row.sources or _NO_SOURCES for row in rows]
    columns = _columns(rows, _FIELDS)
    columns += _columns(sources, _SOURCES, suffix="_source")
    for name in PHASES:
        phases = [getattr(row, name) or _NO_PHASE for row in rows]
        columns += _columns(phases, _PHASE, prefix=f"{name}_")
    return pl.DataFrame(columns)


def _columns(
    objects: Sequence[object], kinds: dict[str, _Type], prefix: str = "", suffix: str = ""
) -> list[pl.Series]:
    """One column per attribute in `kinds`; all attributes of an object are got at once, which is fast."""
    values = zip(*map(attrgetter(*kinds), objects), strict=True) if objects else [()] * len(kinds)
    return [
        pl.Series(f"{prefix}{name}{suffix}", found, kind)
        for (name, kind), found in zip(kinds.items(), values, strict=True)
    ]


def _interval_of_measured() -> list[pl.Expr]:
    """Measured dispatch is its own interval; an estimated one has that of its row."""
    measured = pl.col("dispatch_source") == "measured"
    return [
        pl.when(measured).then(f"{phase}_dispatch_seconds").otherwise(column).alias(column)
        for phase in PHASES
        for column in (f"{phase}_dispatch_low_seconds", f"{phase}_dispatch_high_seconds")
    ]
