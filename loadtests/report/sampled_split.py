"""Splits the steps of each cell into dispatch and kernel by samples of the engine's thread.

One request of each visit has its steps sampled faster, which makes it slower: it is in no statistic of
latency. The samples of all requests of a cell are pooled, because their number is what narrows the split.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from loadtests.report.frame import PHASES, PhaseName
from service.protocol.splits import SIDES, SampleCounts

CellSamples = Mapping[str, SampleCounts]
"""The pooled samples of one phase, by cell."""


def pooled_samples(rows: pl.DataFrame) -> dict[PhaseName, CellSamples]:
    """By phase the samples of each cell that has any, without those whose requests were merged with others.

    Such requests ran in other steps than the sampled one.
    """
    merged = rows.lazy().filter("merged").select("cell").unique()
    alone = rows.lazy().join(merged, on="cell", how="anti")
    return {phase: _of_cells(alone, phase) for phase in PHASES}


def _of_cells(rows: pl.LazyFrame, phase: PhaseName) -> CellSamples:
    """Those of requests that had enough in their own steps; of a cell without such the traffic's.

    The latter overlap from request to request, so that the newest has all that count.
    """
    kernel, host, *_ = found = [pl.col(f"{phase}_{side}_samples").fill_null(0).alias(side) for side in SIDES]
    sampled = rows.filter(pl.col("stage").is_in(("sample", "measure")) & pl.col("ok") & (kernel + host > 0))
    of_traffic = (pl.col(f"{phase}_samples_of") == "traffic").fill_null(value=False)
    traffic = sampled.filter(of_traffic).group_by("cell", maintain_order=True).agg(e.last() for e in found)
    own = sampled.filter(~of_traffic).group_by("cell").agg(each.sum() for each in found)
    counts = pl.concat([traffic, own]).collect().rows()
    return {str(cell): SampleCounts(**dict(zip(SIDES, each, strict=True))) for cell, *each in counts}


def with_sampled_split(rows: pl.DataFrame, samples: Mapping[PhaseName, CellSamples]) -> pl.DataFrame:
    """`rows` with dispatch and kernel by the samples of their cell, where it has any."""
    cell = pl.col("cell").cast(pl.String)
    split = rows.lazy()
    for phase in PHASES:
        shares = {name: found.host / (found.kernel + found.host) for name, found in samples[phase].items()}
        share = cell.replace_strict(shares, default=None, return_dtype=pl.Float64)
        split = split.with_columns(_parts(phase, share))
    sampled = samples["prefill"].keys() | samples["decode"].keys()
    return split.with_columns(_totals(cell.is_in(sorted(sampled)))).collect()


def _parts(phase: PhaseName, share: pl.Expr) -> list[pl.Expr]:
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
