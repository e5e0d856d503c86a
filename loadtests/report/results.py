"""A results folder as tables: one row per request, medians per cell and round, sums and means per cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import polars as pl

from loadtests.run.gates import CheckedRows, Gate
from loadtests.run.resumption import recover
from loadtests.run.rows import RequestRow, RowsError, RowSources, each_row
from loadtests.run.run_file import SweepRun, read_run
from service.records import PHASES, SIDES, Phase, PhaseTimings, SampleCounts

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
    "effective_mode": pl.Categorical,
    "load": pl.Float64, "rate": pl.Float64, "prompt_tokens": pl.Int32,
    "completion_tokens": pl.Int32, "padded_prompt_tokens": pl.Int32, "attended_tokens": pl.Int32,
    "involuntary_switches": pl.Int32, "total_seconds": pl.Float64, "time_to_first_token_seconds": pl.Float64,
    "device_span_seconds": pl.Float64, **{f"{part}_seconds": pl.Float64 for part in PARTS},
    "ok": pl.Boolean, "rejected": pl.Boolean, "profiled": pl.Boolean, "part": pl.Int32, "steps": pl.Int32,
    "merged": pl.Boolean, "effective_batch": pl.Float64,
}  # fmt: skip
"""Fields and properties of a row. Texts that repeat in most rows are categories, a tenth of their size."""


def _type_of(field: str) -> _Type:
    if field.endswith("_seconds"):
        return pl.Float64
    return pl.Categorical if field == "samples_of" else pl.Int32


_PHASE: dict[str, _Type] = {
    field.name: _type_of(field.name)
    for field in msgspec.structs.fields(PhaseTimings)
    if not field.name.endswith("_steps_seconds")
}
"""Fields of a phase, in columns `prefill_…` and `decode_…`."""
_NO_PHASE = SimpleNamespace(**dict.fromkeys(_PHASE))
"""Of a request that failed: all its columns are null."""

_SOURCES: dict[str, _Type] = {"kernel": pl.Categorical, "dispatch": pl.Categorical}
_NO_SOURCES = RowSources()


def frame_of(rows: Iterable[RequestRow]) -> pl.DataFrame:
    """The table of `rows`, which are read once and not kept."""
    tables = list(_tables(iter(rows)))
    return pl.concat(tables or [_table([])]).with_columns(_interval_of_measured())


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


def _mean_of(name: str) -> pl.Expr:
    return pl.col(f"{name}_seconds").mean().alias(f"{name}_seconds_mean")


_LATENCY = pl.col("latency_from_intended_seconds")
"""Latency as reported; in a closed loop every request is due when it is sent."""

_OF_A_CELL = (
    "mode", "effective_mode", "control", "batch_size", "prompt_set", "new_tokens", "concurrency", "load",
    "rate",
)  # fmt: skip

_TIMES = [
    *(_mean_of(part) for part in (*PARTS, "total")),
    (pl.col("latency_seconds") - pl.col("total_seconds")).mean().alias("outside_seconds_mean"),
]
"""What a request's latency consists of, means per request."""

_TIMES_OF_PHASES = [
    _mean_of(f"{phase}_{part}") for phase in PHASES for part in ("wall", "dispatch", "kernel")
]


def _visit_seconds() -> pl.Expr:
    """From the first intended start to the last answer of a visit within a part, spread over its requests."""
    span = (pl.col("start") + pl.col("latency_seconds")).max() - pl.col("intended_start").min()
    return (span / pl.len()).over("cell", "round", "part")


@dataclass(frozen=True)
class Results:
    """A sweep read back: its run, its gates, and its rows.

    One per request, as in `requests.jsonl`, but for dispatch and kernel of cells that have `samples`.
    """

    folder: Path
    run: SweepRun
    gates: tuple[Gate, ...]
    rows: pl.DataFrame
    samples: Mapping[Phase, CellSamples]

    @property
    def failed_gates(self) -> list[Gate]:
        return [gate for gate in self.gates if gate.failed]

    @property
    def warnings(self) -> list[Gate]:
        """Gates that did not pass, and leave the sweep valid."""
        return [gate for gate in self.gates if gate.warning and gate.passed is False]

    @property
    def device(self) -> str:
        return str(self.run.engine.get("device", "cpu"))

    @property
    def measured(self) -> pl.LazyFrame:
        """The rows that count: measured, successful, and not slowed down by the profiler.

        Lazy: a copy of a long sweep's rows would be as large as they are.
        """
        return self.rows.lazy().filter((pl.col("stage") == "measure") & pl.col("ok") & ~pl.col("profiled"))

    @property
    def open_loop_names(self) -> list[str]:
        return [cell.name for cell in self.run.plan.cells if cell.open_loop]

    @cached_property
    def rounds(self) -> pl.DataFrame:
        """One row per cell and round: medians, throughput and means of parts, over successful requests.

        `latency_seconds` is the median; from the intended start in an open loop. `tokens_per_second` is, with
        one request at a time, tokens / summed latency; else tokens over the time from the first intended
        start to the last answer, the gap before a resumed part left out.
        """
        good = self.measured.with_columns(_visit_seconds().alias("visit_seconds"))
        tokens = pl.col("completion_tokens").sum()
        alone = tokens / pl.col("latency_seconds").sum()
        overlapping = tokens / pl.col("visit_seconds").sum()
        in_open_loop = pl.col("cell").first().cast(pl.String).is_in(self.open_loop_names)
        overlap = in_open_loop | (pl.col("concurrency").first() > 1)
        return (
            good.group_by("cell", "round", maintain_order=True)
            .agg(
                pl.col(_OF_A_CELL).first(),
                pl.len().alias("requests"),
                _LATENCY.median().alias("latency_seconds"),
                pl.when(overlap).then(overlapping).otherwise(alone).alias("tokens_per_second"),
                *_TIMES,
                *_TIMES_OF_PHASES,
                pl.col("time_to_first_token_seconds").median(),
                pl.col("involuntary_switches", "steps").sum(),
            )
            .sort("round", maintain_order=True)
            .with_columns(pl.col(pl.Categorical).cast(pl.String))
            .collect()
        )

    @cached_property
    def cells(self) -> pl.DataFrame:
        """One row per cell, over its successful requests: exact sums and means, and the 95th percentile."""
        sums = self.measured.group_by("cell", maintain_order=True).agg(
            pl.len().alias("requests"),
            _LATENCY.quantile(0.95, "linear").alias("latency_p95_seconds"),
            _LATENCY.mean().alias("latency_mean_seconds"),
            *_TIMES,
            pl.col("prompt_tokens", "padded_prompt_tokens", "attended_tokens").mean(),
            pl.col("involuntary_switches", "steps").sum(),
            (pl.col("dispatch_source") != "measured").any().alias("estimated"),
        )
        return sums.with_columns(pl.col("cell").cast(pl.String)).collect()

    def phases_by_cell(self) -> dict[str, pl.DataFrame]:
        """By cell the rows that count, with the columns of both phases; a copy of these columns."""
        phases = [pl.col(f"^{phase}_.*$") for phase in PHASES]
        found = self.measured.select("cell", "round", "effective_mode", *phases).collect()
        return {str(name): rows for (name,), rows in found.partition_by("cell", as_dict=True).items()}

    def medians(self, cell: str, column: str = "latency_seconds") -> dict[int, float]:
        mine = self.rounds.filter(pl.col("cell") == cell)
        return dict(zip(mine["round"].to_list(), mine[column].to_list(), strict=True))


def read_results(folder: Path | str) -> Results:
    """Everything in a results folder, its gates checked anew. Raises RowsError."""
    folder = Path(folder)
    run = read_run(folder)
    rows = CheckedRows()
    table = frame_of(rows.passing(each_row(folder)))
    samples = pooled_samples(table)
    recover(folder, run, rows.finished)
    results = Results(
        folder, run, tuple(rows.gates_of(folder, run)), with_sampled_split(table, samples), samples
    )
    if not results.measured.select(pl.len()).collect().item():
        raise RowsError(f"{folder} holds no measured request that succeeded: run the sweep again")
    return results


CellSamples = Mapping[str, SampleCounts]
"""The pooled samples of one phase, by cell."""


def pooled_samples(rows: pl.DataFrame) -> dict[Phase, CellSamples]:
    """By phase the samples of each cell that has any, without those whose requests were merged with others.

    Such requests ran in other steps than the sampled one.
    """
    merged = rows.lazy().filter("merged").select("cell").unique()
    alone = rows.lazy().join(merged, on="cell", how="anti")
    return {phase: _of_cells(alone, phase) for phase in PHASES}


def _of_cells(rows: pl.LazyFrame, phase: Phase) -> CellSamples:
    """Those in the requests' own steps, where every sampled request has enough of them; else the traffic's.

    Where only some have enough they are the slow ones, whose share is another. The traffic's overlap from
    request to request, so that the newest has all that count.
    """
    kernel, host, *_ = found = [pl.col(f"{phase}_{side}_samples").fill_null(0).alias(side) for side in SIDES]
    sampled = rows.filter(pl.col("stage").is_in(("sample", "measure")) & pl.col("ok") & (kernel + host > 0))
    of_traffic = (pl.col(f"{phase}_samples_of") == "traffic").fill_null(value=False)
    traffic = sampled.filter(of_traffic).group_by("cell", maintain_order=True).agg(e.last() for e in found)
    some_without = sampled.filter(of_traffic & (pl.col("stage") == "sample")).select("cell").unique()
    of_own = sampled.filter(~of_traffic).join(some_without, on="cell", how="anti")
    own = of_own.group_by("cell").agg(each.sum() for each in found)
    counts = pl.concat([traffic, own]).collect().rows()
    return {str(cell): SampleCounts(**dict(zip(SIDES, each, strict=True))) for cell, *each in counts}


def with_sampled_split(rows: pl.DataFrame, samples: Mapping[Phase, CellSamples]) -> pl.DataFrame:
    """`rows` with dispatch and kernel by the samples of their cell, where it has any."""
    cell = pl.col("cell").cast(pl.String)
    split = rows.lazy()
    for phase in PHASES:
        shares = {name: found.host / (found.kernel + found.host) for name, found in samples[phase].items()}
        share = cell.replace_strict(shares, default=None, return_dtype=pl.Float64)
        split = split.with_columns(_parts(phase, share))
    sampled = samples["prefill"].keys() | samples["decode"].keys()
    return split.with_columns(_totals(cell.is_in(sorted(sampled)))).collect()


def _parts(phase: Phase, share: pl.Expr) -> list[pl.Expr]:
    """Dispatch and kernel of the phase, whose sum stays what it was: the wall time."""
    wall = pl.col(f"{phase}_wall_seconds")
    return [
        pl.coalesce(wall * of_wall, f"{phase}_{part}_seconds").alias(f"{phase}_{part}_seconds")
        for part, of_wall in (("dispatch", share), ("kernel", 1 - share))
    ]


def _totals(anew: pl.Expr) -> list[pl.Expr]:
    """The request's own dispatch and kernel, where one of its phases was split anew."""
    known = pl.all_horizontal(
        (pl.col(f"{phase}_steps") == 0) | pl.col(f"{phase}_kernel_seconds").is_not_null() for phase in PHASES
    )
    return [
        pl.when(anew & pl.col("ok"))
        .then(pl.when(known).then(pl.sum_horizontal(f"{phase}_{part}_seconds" for phase in PHASES)))
        .otherwise(pl.col(f"{part}_seconds"))
        .alias(f"{part}_seconds")
        for part in ("dispatch", "kernel")
    ]
