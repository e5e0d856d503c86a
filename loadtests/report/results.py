"""A results folder as tables: one row per request, medians per cell and round, sums and means per cell."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import msgspec
import polars as pl

from loadtests.report.words import WORDS, Words
from loadtests.run.gates import CheckedRows, Gate
from loadtests.run.resumption import recover
from loadtests.run.rows import RequestRow, RowsError, RowSources, each_row
from loadtests.run.run_file import SweepRun, read_run
from service.records import SIDES, Phase, PhaseTimings, SampleCounts
from service.statistics.boundedness import dispatch_share
from service.workloads import FORWARD, Workload

PARTS = ("queue", "dispatch", "kernel", "sync_wait", "other")
"""In the order in which they are stacked."""


BLOCK_ROWS = 1000
"""So many rows are objects at a time: few enough to stay in the processor's cache."""

_Type = type[pl.DataType]

_FIELDS: dict[str, _Type] = {
    "cell": pl.Categorical, "round": pl.Int32, "sequence": pl.Int32, "stage": pl.Categorical,
    "mode": pl.Categorical, "control": pl.Boolean, "batch_size": pl.Int32, "prompt_set": pl.Categorical,
    "new_tokens": pl.Int32, "calls": pl.Int32, "size": pl.Categorical, "concurrency": pl.Int32,
    "intended_start": pl.Float64, "start": pl.Float64, "latency_seconds": pl.Float64,
    "latency_from_intended_seconds": pl.Float64, "compared_seconds": pl.Float64,
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
"""Fields of a phase, in columns that begin with its name."""
_NO_PHASE = SimpleNamespace(**dict.fromkeys(_PHASE))
"""Of a request that failed: all its columns are null."""

_SOURCES: dict[str, _Type] = {"kernel": pl.Categorical, "dispatch": pl.Categorical}
_NO_SOURCES = RowSources()


def frame_of(rows: Iterable[RequestRow], phases: Sequence[Phase]) -> pl.DataFrame:
    """The table of `rows`, which are read once and not kept, with columns of these `phases`."""
    tables = list(_tables(iter(rows), phases))
    return pl.concat(tables or [_table([], phases)]).with_columns(_interval_of_measured(phases))


def _tables(rows: Iterator[RequestRow], phases: Sequence[Phase]) -> Iterator[pl.DataFrame]:
    while block := list(islice(rows, BLOCK_ROWS)):
        yield _table(block, phases)


def _table(rows: Sequence[RequestRow], phases: Sequence[Phase]) -> pl.DataFrame:
    sources = [row.sources or _NO_SOURCES for row in rows]
    columns = _columns(rows, _FIELDS)
    columns += _columns(sources, _SOURCES, suffix="_source")
    for name in phases:
        found = [getattr(row, name) or _NO_PHASE for row in rows]
        columns += _columns(found, _PHASE, prefix=f"{name}_")
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


def _interval_of_measured(phases: Sequence[Phase]) -> list[pl.Expr]:
    """Measured dispatch is its own interval; an estimated one has that of its row."""
    measured = pl.col("dispatch_source") == "measured"
    return [
        pl.when(measured).then(f"{phase}_dispatch_seconds").otherwise(column).alias(column)
        for phase in phases
        for column in (f"{phase}_dispatch_low_seconds", f"{phase}_dispatch_high_seconds")
    ]


def _mean_of(name: str) -> pl.Expr:
    return pl.col(f"{name}_seconds").mean().alias(f"{name}_seconds_mean")


_COMPARED = pl.col("compared_seconds")
"""Latency as reported, or of a module the time of a call; in a closed loop every request is due when sent."""

_TIMES = [
    *(_mean_of(part) for part in (*PARTS, "total")),
    (pl.col("latency_seconds") - pl.col("total_seconds")).mean().alias("outside_seconds_mean"),
]
"""What a request's latency, or a call's time, consists of: means."""


def _visit_seconds() -> pl.Expr:
    """From the first intended start to the last answer of a visit within a part, spread over its requests."""
    span = (pl.col("start") + pl.col("latency_seconds")).max() - pl.col("intended_start").min()
    return (span / pl.len()).over("cell", "round", "part")


@dataclass(frozen=True)
class Results:
    """A sweep read back: its run, its gates, and its rows.

    One per request, as in `requests.jsonl`, but for dispatch and kernel of cells that have `samples`; of a
    module, times are of one of its calls.
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
    def workload(self) -> Workload:
        return self.run.workload

    @property
    def words(self) -> Words:
        return WORDS[self.workload.name]

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

        The column `words.seconds` is the median of what is compared; of latencies in an open loop, from the
        intended start.
        """
        good = self.measured.with_columns(_visit_seconds().alias("visit_seconds"))
        words, phases = self.words, self.workload.phases
        of_cell = ("mode", "effective_mode", "control", *self.run.plan.cells[0].work)
        walls = [_mean_of(f"{one}_{part}") for one in phases for part in ("wall", "dispatch", "kernel")]
        first_token = [pl.col("time_to_first_token_seconds").median()] if words.has_tokens else []
        return (
            good.group_by("cell", "round", maintain_order=True)
            .agg(
                pl.col(*of_cell, "concurrency", "load", "rate").first(),
                pl.len().alias("requests"),
                _COMPARED.median().alias(words.seconds),
                self._throughput().alias(words.rate),
                *_TIMES,
                *walls,
                *first_token,
                pl.col("involuntary_switches", "steps").sum(),
            )
            .sort("round", maintain_order=True)
            .with_columns(pl.col(pl.Categorical).cast(pl.String))
            .collect()
        )

    def _throughput(self) -> pl.Expr:
        """Per second of a cell's round: samples of calls, whose time has nothing around them, or tokens.

        With one request at a time, tokens / summed latency; else tokens over the time from the first intended
        start to the last answer, the gap before a resumed part left out.
        """
        if not self.words.has_tokens:
            return pl.col("batch_size").sum() / _COMPARED.sum()
        tokens = pl.col("completion_tokens").sum()
        in_open_loop = pl.col("cell").first().cast(pl.String).is_in(self.open_loop_names)
        overlap = in_open_loop | (pl.col("concurrency").first() > 1)
        overlapping = tokens / pl.col("visit_seconds").sum()
        return pl.when(overlap).then(overlapping).otherwise(tokens / pl.col("latency_seconds").sum())

    @cached_property
    def cells(self) -> pl.DataFrame:
        """One row per cell, over its successful requests: exact sums and means, and the 95th percentile."""
        sums = self.measured.group_by("cell", maintain_order=True).agg(
            pl.len().alias("requests"),
            _COMPARED.quantile(0.95, "linear").alias("latency_p95_seconds"),
            _COMPARED.mean().alias("latency_mean_seconds"),
            *_TIMES,
            pl.col("prompt_tokens", "padded_prompt_tokens", "attended_tokens").mean(),
            pl.col("involuntary_switches", "steps").sum(),
            (pl.col("dispatch_source") != "measured").any().alias("estimated"),
        )
        return sums.with_columns(pl.col("cell").cast(pl.String)).collect()

    def phases_by_cell(self) -> dict[str, pl.DataFrame]:
        """By cell the rows that count, with the columns of its phases; a copy of these columns."""
        phases = [pl.col(f"^{phase}_.*$") for phase in self.workload.phases]
        found = self.measured.select("cell", "round", "effective_mode", *phases).collect()
        return {str(name): rows for (name,), rows in found.partition_by("cell", as_dict=True).items()}

    def medians(self, cell: str, column: str | None = None) -> dict[int, float]:
        """By round; of the compared seconds where no other `column` is named."""
        mine = self.rounds.filter(pl.col("cell") == cell)
        values = mine[column or self.words.seconds].to_list()
        return dict(zip(mine["round"].to_list(), values, strict=True))


def read_results(folder: Path | str) -> Results:
    """Everything in a results folder, its gates checked anew. Raises RowsError."""
    folder = Path(folder)
    run = read_run(folder)
    rows = CheckedRows()
    table = frame_of(rows.passing(each_row(folder)), run.workload.phases)
    samples = pooled_samples(table, run.workload.phases)
    recover(folder, run, rows.finished)
    split = with_sampled_split(table, samples)
    if run.workload is FORWARD:
        split = of_one_call(split)
    results = Results(folder, run, tuple(rows.gates_of(folder, run)), split, samples)
    if not results.measured.select(pl.len()).collect().item():
        raise RowsError(f"{folder} holds no measured request that succeeded: run the sweep again")
    return results


CellSamples = Mapping[str, SampleCounts]
"""The pooled samples of one phase, by cell."""


def pooled_samples(rows: pl.DataFrame, phases: Sequence[Phase]) -> dict[Phase, CellSamples]:
    """By phase the samples of each cell that has any, without those whose requests were merged with others.

    Such requests ran in other steps than the sampled one.
    """
    merged = rows.lazy().filter("merged").select("cell").unique()
    alone = rows.lazy().join(merged, on="cell", how="anti")
    return {phase: _of_cells(alone, phase) for phase in phases}


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
    """`rows` with dispatch and kernel by the samples of their cell, where it has any.

    Null where `dispatch_share` tells none of them: a request's own few samples tell no more.
    """
    cell = pl.col("cell").cast(pl.String)
    split = rows.lazy()
    for phase, own in samples.items():
        found = {name: dispatch_share(counts) for name, counts in own.items()}
        shares = {name: share and share.value for name, share in found.items()}
        share = cell.replace_strict(shares, default=None, return_dtype=pl.Float64)
        split = split.with_columns(_parts(phase, share, cell.is_in(sorted(shares))))
    sampled = {name for own in samples.values() for name in own}
    return split.with_columns(_totals(cell.is_in(sorted(sampled)), list(samples))).collect()


def _parts(phase: Phase, share: pl.Expr, sampled: pl.Expr) -> list[pl.Expr]:
    """Dispatch and kernel of the phase, whose sum stays what it was: the wall time."""
    wall = pl.col(f"{phase}_wall_seconds")
    parts = (("dispatch", share), ("kernel", 1 - share))
    names = [(f"{phase}_{part}_seconds", of_wall) for part, of_wall in parts]
    return [pl.when(sampled).then(wall * of_wall).otherwise(name).alias(name) for name, of_wall in names]


def _totals(anew: pl.Expr, phases: Sequence[Phase]) -> list[pl.Expr]:
    """The request's own dispatch and kernel, where one of its phases was split anew."""
    known = pl.all_horizontal(
        (pl.col(f"{phase}_steps") == 0) | pl.col(f"{phase}_kernel_seconds").is_not_null() for phase in phases
    )
    return [
        pl.when(anew & pl.col("ok"))
        .then(pl.when(known).then(pl.sum_horizontal(f"{phase}_{part}_seconds" for phase in phases)))
        .otherwise(pl.col(f"{part}_seconds"))
        .alias(f"{part}_seconds")
        for part in ("dispatch", "kernel")
    ]


def of_one_call(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` of a module with the times of one of a request's calls in place of the request's.

    `other` is, on CUDA, what lies between two calls. A call has no queue, and no total of a server.
    """
    calls = pl.col("forward_steps")
    own = [name for name in rows.columns if re.match(r"forward_.*_seconds|forward_minor_faults", name)]
    seconds, none = _COMPARED, pl.lit(None, pl.Float64)
    return rows.with_columns(
        *(pl.col(name) / calls for name in own),
        *((pl.col(f"forward_{part}_seconds") / calls).alias(f"{part}_seconds") for part in _OF_CALLS),
        (seconds - pl.col("forward_wall_seconds") / calls).alias("other_seconds"),
        seconds.alias("latency_seconds"),
        none.alias("queue_seconds"),
        none.alias("total_seconds"),
        pl.lit(1, pl.Int32).alias("forward_steps"),
    )


_OF_CALLS = ("dispatch", "kernel", "sync_wait", "device_span")
"""Those parts of a request that are sums over its calls."""
