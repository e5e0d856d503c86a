"""Prefill and decode of a cell apart: what each took per request, and the kernels' share of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from service.records import Phase, SampleCounts
from service.statistics.boundedness import (
    UNPROVED,
    LeftOpen,
    Split,
    bound_in_words,
    device_bound_index,
    dispatch_share,
    index_interval,
)
from service.statistics.intervals import Interval

_MEANS = (
    *("steps", "wall_seconds", "dispatch_seconds", "dispatch_low_seconds", "dispatch_high_seconds"),
    *("kernel_seconds", "sync_wait_seconds", "minor_faults"),
)


@dataclass(frozen=True, slots=True)
class PhaseMeans:
    """One phase of a cell's requests; seconds, steps and `minor_faults` are means per request.

    None: not measured on this device, or not recorded in this folder. `typical_faults` is the median of the
    requests' page faults. `index` is the kernel share. Its `interval` is that of the cell's `samples`, or
    without any the dispatch interval of the rows and the scatter of the rounds. None where rows of an
    estimate carry no interval. `estimated`: dispatch and kernel are on one timeline, a CPU's.
    """

    name: Phase
    steps: float | None
    wall_seconds: float | None
    dispatch_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    minor_faults: float | None
    typical_faults: float | None
    samples: SampleCounts | None
    estimated: bool
    index: float | None
    interval: Interval | None

    @property
    def bound(self) -> str | None:
        """On a GPU the class of the share, or between which it is undecided; None without its interval."""
        return bound_in_words(self.interval) if self.interval and not self.estimated else None

    @property
    def headroom(self) -> Interval | None:
        """On a CPU how many times as fast the phase would be without dispatch; None without the interval."""
        if self.index is None or self.interval is None or not self.estimated:
            return None
        shares = (self.index, self.interval.high, self.interval.low)
        value, low, high = (1 / share if share > 0 else math.inf for share in shares)
        return Interval(value, low, high, self.interval.samples)

    @property
    def step_dispatch_seconds(self) -> float | None:
        """Dispatch of one step."""
        return (
            self.dispatch_seconds / self.steps if self.dispatch_seconds is not None and self.steps else None
        )

    @property
    def step_wall_seconds(self) -> float | None:
        """Wall time of one step."""
        return self.wall_seconds / self.steps if self.wall_seconds is not None and self.steps else None


def phase_of(
    rows: pl.DataFrame,
    name: Phase,
    samples: SampleCounts | None,
    estimated: bool,
    left_open: LeftOpen = UNPROVED,
) -> PhaseMeans:
    """The phase `name` of the measured `rows` of one cell.

    By `samples` of the cell, if any, whose errors `left_open` bounds; `estimated` as in PhaseMeans.
    """
    averages = rows.select(pl.col(f"{name}_{field}").mean() for field in _MEANS).row(0)
    means = dict(zip(_MEANS, averages, strict=True))
    if samples is None:
        interval = index_interval(_splits_by_round(rows, name))
    else:
        interval = _kernel_share(samples, left_open)
        means["dispatch_low_seconds"] = means["wall_seconds"] * (1 - interval.high)
        means["dispatch_high_seconds"] = means["wall_seconds"] * (1 - interval.low)
    return PhaseMeans(
        name=name,
        **means,
        typical_faults=rows.select(pl.col(f"{name}_minor_faults").median()).item(),
        samples=samples,
        estimated=estimated,
        index=device_bound_index(means["kernel_seconds"], means["dispatch_seconds"]),
        interval=interval,
    )


def _kernel_share(samples: SampleCounts, left_open: LeftOpen) -> Interval:
    share = dispatch_share(samples.kernel, samples.host, samples.unclassified, left_open)
    assert share is not None
    return Interval(1 - share.value, 1 - share.high, 1 - share.low, samples.kernel + samples.host)


def _splits_by_round(rows: pl.DataFrame, name: Phase) -> list[Split]:
    """Per round the sums of dispatch, kernel and dispatch's ends, over the rows that have all of them."""
    columns = [f"{name}_{part}_seconds" for part in ("dispatch", "kernel", "dispatch_low", "dispatch_high")]
    complete = rows.lazy().select("round", *columns).drop_nulls()
    sums = complete.group_by("round").agg(pl.col(columns).sum()).sort("round").select(columns).collect()
    return [Split(*values) for values in sums.rows()]
