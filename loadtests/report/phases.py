"""Prefill and decode of a cell apart: what each took per request, and its device-bound index."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from loadtests.report.frame import PhaseName
from loadtests.report.later_floors import LaterFloor
from service.statistics.boundedness import bound_in_words, device_bound_index
from service.statistics.estimates import Split, index_interval
from service.statistics.intervals import Interval
from service.statistics.sampled_share import MISCLASSED, counting_error

_MEANS = ("steps", "wall_seconds", "dispatch_seconds", "dispatch_low_seconds", "dispatch_high_seconds")
_MORE_MEANS = ("kernel_seconds", "sync_wait_seconds", "minor_faults")


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a cell's requests; seconds, steps and `minor_faults` are means per request.

    None: not measured on this device, or not recorded in this folder. `typical_faults` is the median of the
    requests' page faults. `interval` is that of the index: where
    the visits were sampled what samples may take for the other part, else the dispatch interval of the rows
    widened by the floors after the sweep; and the scatter of the rounds. None where rows of an estimate carry
    no interval. `samples` is how many all visits have, None where they were not sampled; `clipped` counts
    requests whose estimated dispatch was cut to the phase's wall time.
    """

    name: PhaseName
    steps: float | None
    wall_seconds: float | None
    dispatch_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    minor_faults: float | None
    typical_faults: float | None
    samples: int | None
    clipped: int
    index: float | None
    interval: Interval | None

    @property
    def bound(self) -> str | None:
        """The class of the index, or between which it is undecided; None where its interval is unknown."""
        return bound_in_words(self.interval) if self.interval else None

    @property
    def step_wall_seconds(self) -> float | None:
        """Wall time of one step."""
        return self.wall_seconds / self.steps if self.wall_seconds is not None and self.steps else None


def phase_of(
    rows: pl.DataFrame, name: PhaseName, later: LaterFloor | None = None, misclassed: float = MISCLASSED
) -> Phase:
    """The phase `name` of the measured `rows` of one cell.

    `later` is what its floor was after the sweep, which counts where not all visits were sampled; by samples
    `misclassed` of either part may be the other.
    """
    counts = _samples(rows, name)
    sampled = counts is not None
    if sampled:
        later = None
    rows = rows.with_columns(_ends_of_samples(name, misclassed))
    fields = (*_MEANS, *_MORE_MEANS)
    averages = rows.select(pl.col(f"{name}_{field}").mean() for field in fields).row(0)
    means = dict(zip(fields, averages, strict=True))
    parts = [means[f"{part}_seconds"] for part in ("dispatch", "kernel", "dispatch_low", "dispatch_high")]
    # What a round has from others says nothing of how rounds scatter.
    own = rows.filter(pl.col(f"{name}_samples").is_not_null()) if sampled else rows
    interval = index_interval(splits_by_round(own, name, later), counting_error(*counts) if counts else 0.0)
    if later is not None and None not in parts:
        widened = later.widened(Split(*parts), means["steps"])
        means |= {"dispatch_low_seconds": widened.low, "dispatch_high_seconds": widened.high}
    if sampled and interval is not None and None not in parts:
        both = parts[0] + parts[1]
        means["dispatch_low_seconds"] = both * (1 - interval.high)
        means["dispatch_high_seconds"] = both * (1 - interval.low)
    return Phase(
        name=name,
        **means,
        typical_faults=rows.select(pl.col(f"{name}_minor_faults").median()).item(),
        samples=sum(counts) if counts else None,
        clipped=rows.select(pl.col(f"{name}_clipped").fill_null(False).sum()).item(),
        index=device_bound_index(means["kernel_seconds"], means["dispatch_seconds"]),
        interval=interval,
    )


def _samples(rows: pl.DataFrame, name: PhaseName) -> tuple[int, int] | None:
    """How many samples of kernels and of the host all visits have; None where one is split without any."""
    if rows[f"{name}_dispatch_share"].null_count():
        return None
    visits = rows.group_by("round").agg(pl.col(f"{name}_samples", f"{name}_dispatch_share").first())
    counts = visits[f"{name}_samples"].fill_null(0)
    host = round((counts * visits[f"{name}_dispatch_share"]).sum())
    return int(counts.sum()) - host, host


def _ends_of_samples(name: PhaseName, misclassed: float) -> list[pl.Expr]:
    """The ends of dispatch where a visit was sampled, in place of the requests' own.

    Without the error of counting, which the scatter of the rounds shows: it does not add up over requests, as
    what is taken for the other part does. As `sampled_share.widened`.
    """
    share, unnamed = pl.col(f"{name}_dispatch_share"), pl.col(f"{name}_unnamed_share")
    wall = pl.col(f"{name}_dispatch_seconds") + pl.col(f"{name}_kernel_seconds")
    ends: dict[str, pl.Expr] = {"low": pl.lit(0.0), "high": pl.lit(1.0)}
    if misclassed < 1:
        ends["low"] = ((share - unnamed - misclassed) / (1 - misclassed)).clip(lower_bound=0.0)
        ends["high"] = (share / (1 - misclassed)).clip(upper_bound=1.0)
    return [
        pl.when(share.is_null()).then(pl.col(column)).otherwise(wall * end).alias(column)
        for column, end in ((f"{name}_dispatch_{side}_seconds", end) for side, end in ends.items())
    ]


def splits_by_round(rows: pl.DataFrame, name: PhaseName, later: LaterFloor | None = None) -> list[Split]:
    """Per round the sums of dispatch, kernel and dispatch's ends, over the rows that have all of them."""
    columns = [f"{name}_{part}_seconds" for part in ("dispatch", "kernel", "dispatch_low", "dispatch_high")]
    columns.append(f"{name}_steps")
    complete = rows.lazy().select("round", *columns).drop_nulls()
    sums = complete.group_by("round").agg(pl.col(columns).sum()).sort("round").select(columns).collect()
    splits = [(Split(*values), steps) for *values, steps in sums.rows()]
    return [later.widened(split, steps) if later else split for split, steps in splits]
