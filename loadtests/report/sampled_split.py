"""Splits the steps of each cell into dispatch and kernel by samples of the engine's thread.

One request of each visit has its steps sampled faster, which makes it slower: it is in no statistic of
latency. The samples of all requests of a cell are pooled, because their number is what narrows the split.
"""

from __future__ import annotations

import polars as pl

from loadtests.report.frame import PHASES, PhaseName
from service.protocol.splits import SIDES


def with_sampled_split(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` with dispatch and kernel by the samples of their cell, where it has any.

    New columns of each phase are `…_{side}_pooled`: how many samples of the cell were on that side. Null for
    requests that were merged with others, which ran in other steps.
    """
    split = rows.lazy()
    for phase in PHASES:
        split = split.join(_of_cells(rows.lazy(), phase), on="cell", how="left", maintain_order="left")
        split = split.with_columns(_unmerged(phase)).with_columns(_parts(phase))
    return split.with_columns(_totals()).collect()


def _of_cells(rows: pl.LazyFrame, phase: PhaseName) -> pl.LazyFrame:
    """The samples of requests that had enough in their own steps; of a cell without such the traffic's.

    The latter overlap from request to request, so that the newest has all that count.
    """
    columns = pooled_columns(phase)
    found = [pl.col(f"{phase}_{side}_samples").fill_null(0) for side in SIDES]
    sampled = rows.filter(
        pl.col("stage").is_in(("sample", "measure"))
        & pl.col("ok")
        & ~pl.col("merged")
        & (found[0] + found[1] > 0)
    ).select("cell", f"{phase}_samples_of", **dict(zip(columns, found, strict=True)))
    of_traffic = (pl.col(f"{phase}_samples_of") == "traffic").fill_null(value=False)
    counts = pl.col(columns)
    own = sampled.filter(~of_traffic).group_by("cell").agg(counts.sum())
    traffic = sampled.filter(of_traffic).group_by("cell", maintain_order=True).agg(counts.last())
    return pl.concat([own, traffic.join(own, on="cell", how="anti")])


def pooled_columns(phase: PhaseName) -> list[str]:
    """The new columns of `phase`, in the order of the sides."""
    return [f"{phase}_{side}_pooled" for side in SIDES]


def _unmerged(phase: PhaseName) -> list[pl.Expr]:
    return [pl.when(~pl.col("merged")).then(name).alias(name) for name in pooled_columns(phase)]


def _parts(phase: PhaseName) -> list[pl.Expr]:
    """Dispatch and kernel of the phase, whose sum stays what it was: the wall time."""
    kernel, host, *_ = map(pl.col, pooled_columns(phase))
    wall = pl.col(f"{phase}_wall_seconds")
    return [
        pl.when(host.is_null())
        .then(pl.col(f"{phase}_{part}_seconds"))
        .otherwise(wall * found / (kernel + host))
        .alias(f"{phase}_{part}_seconds")
        for part, found in (("dispatch", host), ("kernel", kernel))
    ]


def _totals() -> list[pl.Expr]:
    """The request's own dispatch and kernel, where one of its phases was split anew."""
    anew = pl.any_horizontal(pl.col(pooled_columns(phase)[0]).is_not_null() for phase in PHASES)
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
