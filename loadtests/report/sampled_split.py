"""Requests that were sampled say how the steps of their visit split into dispatch and kernel.

Before each visit of a cell one request has its steps sampled, which makes it slower: it is in no statistic
of latency, and its shares are those of the visit's other requests. So what splits their time is of the same
cell, and of the same seconds.
"""

from __future__ import annotations

import polars as pl

from loadtests.report.frame import PHASES, PhaseName


def with_sampled_split(rows: pl.DataFrame) -> pl.DataFrame:
    """`rows` with dispatch and kernel by the samples of their visit, where it has any.

    New columns, of each phase: `…_dispatch_share` of its wall time, `…_unnamed_share` (samples in functions
    without a name, a part of that), and `…_samples`, how many the visit has. A visit without samples has the
    shares of all others of its cell together; null where none of them was sampled, and for requests that were
    merged with others, which ran in other steps.
    """
    sampled = rows.lazy().filter((pl.col("stage") == "sample") & pl.col("ok"))
    split = rows.lazy()
    for phase in PHASES:
        counts = [pl.col(f"{phase}_{side}_samples").sum().alias(side) for side in _SIDES]
        for keys, suffix in ((["cell", "round"], ""), (["cell"], _OF_CELL)):
            found = sampled.group_by(keys).agg(counts).filter(_BOTH > 0).select(*keys, *_shares(phase))
            split = split.join(found, on=keys, how="left", suffix=suffix, maintain_order="left")
        split = split.with_columns(_chosen(phase)).with_columns(_parts(phase))
    return split.drop(pl.selectors.ends_with(_OF_CELL)).with_columns(_totals()).collect()


_SIDES = ("kernel", "host", "unnamed")
_BOTH = pl.col("kernel") + pl.col("host")
_OF_CELL = "_of_cell"


def _shares(phase: PhaseName) -> list[pl.Expr]:
    return [
        (pl.col("host") / _BOTH).alias(f"{phase}_dispatch_share"),
        (pl.col("unnamed") / _BOTH).alias(f"{phase}_unnamed_share"),
        _BOTH.alias(f"{phase}_samples"),
    ]


def _chosen(phase: PhaseName) -> list[pl.Expr]:
    """The shares of the visit, else of the cell; none for what was merged."""
    names = (f"{phase}_dispatch_share", f"{phase}_unnamed_share")
    return [
        pl.when(~pl.col("merged")).then(pl.coalesce(name, f"{name}{_OF_CELL}")).alias(name) for name in names
    ]


def _parts(phase: PhaseName) -> list[pl.Expr]:
    """Dispatch and kernel of the phase, whose sum stays what it was: the wall time."""
    wall, share = pl.col(f"{phase}_wall_seconds"), pl.col(f"{phase}_dispatch_share")
    values = {
        "dispatch_seconds": wall * share,
        "kernel_seconds": wall * (1 - share),
        "clipped": pl.lit(False),
    }
    return [
        pl.when(share.is_null()).then(pl.col(f"{phase}_{name}")).otherwise(value).alias(f"{phase}_{name}")
        for name, value in values.items()
    ]


def _totals() -> list[pl.Expr]:
    """The request's own dispatch and kernel, where both of its phases were split anew."""
    known = pl.all_horizontal(pl.col(f"{phase}_dispatch_share").is_not_null() for phase in PHASES)
    return [
        pl.when(known & pl.col("ok"))
        .then(pl.sum_horizontal(f"{phase}_{part}_seconds" for phase in PHASES))
        .otherwise(pl.col(f"{part}_seconds"))
        .alias(f"{part}_seconds")
        for part in ("dispatch", "kernel")
    ]
