"""The GPU's power in each cell, from samples that belong to one visit of it alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import fmean

import polars as pl

from loadtests.report.results import Results
from loadtests.run.machine import clocks_file, power_samples
from service.statistics.intervals import Interval, mean_interval

AVERAGED_SECONDS = 1.0
"""`power.draw` of GPUs since Ampere is the mean of the second before (nvidia-smi's manual), A100 excepted."""

Sample = tuple[float, float]


@dataclass(frozen=True, slots=True)
class GpuPower:
    """Mean watts of the GPU's board by cell, over its visits; `absent` is why a cell has none."""

    by_cell: dict[str, Interval]
    absent: str


def gpu_power(results: Results) -> GpuPower:
    """Of a sweep whose GPU was sampled; a cell needs two visits with a sample.

    A sample counts for a visit where the second that it averages lies within: most short visits have none.
    """
    parts = range(1, max(1, len(results.run.parts)) + 1)
    sampled = [power_samples(clocks_file(results.folder, part)) for part in parts]
    gpus = {gpu for one in sampled for gpu in one}
    if results.device != "cuda":
        return GpuPower({}, "not measured on a CPU")
    if not gpus:
        return GpuPower({}, "no power was sampled")
    if len(gpus) > 1:
        return GpuPower({}, "several GPUs were sampled, and which of them served is not known")
    (gpu,) = gpus
    samples = sorted(sample for one in sampled for sample in one.get(gpu, []))
    by_cell: dict[str, list[float]] = {}
    for cell, watts in _visits(results, samples):
        by_cell.setdefault(cell, []).append(watts)
    found = {cell: mean_interval(visits) for cell, visits in by_cell.items() if len(visits) > 1}
    return GpuPower(found, "its visits are too short for power, which is averaged over a second")


def _visits(results: Results, samples: list[Sample]) -> Iterator[tuple[str, float]]:
    """Each visit that has samples, by its cell, with their mean watts."""
    ends = (pl.col("start") + pl.col("latency_seconds")).max().alias("end")
    visits = results.measured.group_by("cell", "round", "part").agg(pl.col("start").min(), ends).collect()
    times = [time for time, _ in samples]
    for cell, start, end in visits.select(pl.col("cell").cast(pl.String), "start", "end").iter_rows():
        first, last = bisect_left(times, start + AVERAGED_SECONDS), bisect_right(times, end)
        if first < last:
            yield cell, fmean(watts for _, watts in samples[first:last])
