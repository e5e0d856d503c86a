"""Requests that were sampled say how the steps of their visit split into dispatch and kernel.

Before each visit of a cell one request has its steps sampled, which makes it slower: it is in no statistic
of latency, and its shares are those of the visit's other requests. So what splits their time is of the same
cell, and of the same seconds.
"""

from __future__ import annotations

import polars as pl

from loadtests.report.frame import PHASES, PhaseName

_SIZE: dict[PhaseName, str] = {"prefill": "padded_prompt_tokens", "decode": "attended_tokens"}
"""What kernel time of a phase's steps grows with, while their dispatch stays."""

_VISIT = ("cell", "round")
_SIDES = ("kernel", "host", "unnamed")
_BOTH = pl.col("kernel") + pl.col("host")
_OF_CELL = "_of_cell"


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
        found = _counted(sampled, phase, *_VISIT)
        split = split.join(found, on=_VISIT, how="left", maintain_order="left")
        split = split.join(
            _counted(sampled, phase, "cell").drop("sampled_size"),
            on="cell",
            how="left",
            suffix=_OF_CELL,
            maintain_order="left",
        )
        split = split.join(_alike(rows.lazy(), found, phase), on=_VISIT, how="left", maintain_order="left")
        split = split.with_columns(_chosen(phase)).with_columns(_parts(phase)).drop("sampled_size", "alike")
    return split.drop(pl.selectors.ends_with(_OF_CELL)).with_columns(_totals()).collect()


def _counted(sampled: pl.LazyFrame, phase: PhaseName, *keys: str) -> pl.LazyFrame:
    """Shares by the samples of each group, how many there are, and the size of the first one's steps."""
    counts = [pl.col(f"{phase}_{side}_samples").sum().alias(side) for side in _SIDES]
    found = sampled.group_by(*keys).agg(*counts, pl.col(_SIZE[phase]).first().alias("sampled_size"))
    return found.filter(_BOTH > 0).select(
        *keys,
        "sampled_size",
        (pl.col("host") / _BOTH).alias(f"{phase}_dispatch_share"),
        (pl.col("unnamed") / _BOTH).alias(f"{phase}_unnamed_share"),
        _BOTH.alias(f"{phase}_samples"),
    )


def _step_seconds(phase: PhaseName) -> pl.Expr:
    return pl.col(f"{phase}_wall_seconds") / pl.col(f"{phase}_steps")


def _alike(rows: pl.LazyFrame, found: pl.LazyFrame, phase: PhaseName) -> pl.LazyFrame:
    """Per visit, seconds of a step in the measured requests whose steps are as large as the sampled one's."""
    measured = rows.filter((pl.col("stage") == "measure") & pl.col("ok"))
    same = measured.join(found.select(*_VISIT, "sampled_size"), on=_VISIT).filter(
        pl.col(_SIZE[phase]) == pl.col("sampled_size")
    )
    return same.group_by(*_VISIT).agg(_step_seconds(phase).mean().alias("alike"))


def _chosen(phase: PhaseName) -> list[pl.Expr]:
    """The shares of the visit, else of the cell; none for what was merged.

    Where steps are of another size, they take as long for dispatch as those that are like the sampled one's.
    """
    other = pl.col("sampled_size").is_not_null() & (pl.col(_SIZE[phase]) != pl.col("sampled_size"))
    longer = pl.when(other).then(pl.col("alike") / _step_seconds(phase)).otherwise(1.0).fill_null(1.0)
    names = (f"{phase}_dispatch_share", f"{phase}_unnamed_share")
    return [
        pl.when(~pl.col("merged"))
        .then((pl.coalesce(name, f"{name}{_OF_CELL}") * longer).clip(upper_bound=1.0))
        .alias(name)
        for name in names
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
    """The request's own dispatch and kernel, where one of its phases was split anew."""
    anew = pl.any_horizontal(pl.col(f"{phase}_dispatch_share").is_not_null() for phase in PHASES)
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
