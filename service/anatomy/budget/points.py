"""A decode step of one mode at one batch as a point of a budget, and where kernels overtake dispatch."""

from __future__ import annotations

import msgspec

from service.anatomy.budget.steps import Key, Steps
from service.anatomy.budget.verdict import without_dispatch
from service.measure.cases import Bench
from service.measure.roof import Roof
from service.measure.split import DispatchSplit
from service.protocol.modes import MODES
from service.statistics.boundedness import Bound, bound, crossover, device_bound_index
from service.statistics.intervals import Interval, median_interval
from service.statistics.roofline import Roofline


class BatchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A decode step of one mode at one batch.

    `without_dispatch_speedup` is the step over its kernels and one empty operator: the gain of removing all
    other dispatch, on CUDA by a graph. It keeps this mode's kernels; compiling may also shorten those.
    `device_bound_index` is the kernel share, and `bound` its class, a GPU's term. `source`: `sampled`, on a
    CPU, or `measured`. `speedup` is measured, against the first mode. `disturbed`: more than one involuntary
    context switch in 20 steps (`switches_per_step`). `roofline` sets the bytes that the step must move over
    its kernels, against the finding's `bandwidth`; None without kernels.
    """

    mode: str
    effective: str
    batch_size: int
    step: Interval
    dispatch_seconds: Interval
    kernel_seconds: Interval
    dispatch_seconds_per_sequence: float
    device_bound_index: float
    bound: Bound
    without_dispatch_speedup: float
    speedup: Interval
    roofline: Roofline | None
    source: str
    switches_per_step: float
    disturbed: bool


class ModeCrossover(msgspec.Struct, frozen=True, kw_only=True):
    """The batch at which kernels take as long as dispatch.

    `where`: `at`, `below` or `above` all that were measured, or at `several`.
    """

    mode: str
    where: str
    batch_size: float | None


def make_point(
    bench: Bench, key: Key, steps: Steps, split: DispatchSplit, null: float, roof: Roof
) -> BatchPoint:
    """The point of `key`: its step by the clock, `split` in two, under `roof`."""
    mode, batch = key
    walls = steps.walls[key]
    first = next(iter(steps.walls))[0]
    ratios = [base / own for base, own in zip(steps.walls[first, batch], walls, strict=True)]
    step = median_interval(walls)
    dispatch = split.dispatch.value
    kernel = split.kernel.value
    index = device_bound_index(kernel, dispatch) or 0.0
    return BatchPoint(
        mode=mode,
        effective=MODES[mode].effect(bench.device.type).name,
        batch_size=batch,
        step=step,
        dispatch_seconds=split.dispatch,
        kernel_seconds=split.kernel,
        dispatch_seconds_per_sequence=dispatch / batch,
        device_bound_index=index,
        bound=bound(index) or "launch-bound",
        speedup=median_interval(ratios),
        roofline=roof.over(batch, split.kernel),
        source=split.source,
        without_dispatch_speedup=without_dispatch(step.value, kernel, null),
        switches_per_step=steps.switches_per_step[key],
        disturbed=steps.disturbed(key),
    )


def crossovers(points: list[BatchPoint]) -> list[ModeCrossover]:
    """Where kernels take as long as dispatch, of each mode in `points`."""
    found = []
    for mode in dict.fromkeys(point.mode for point in points):
        index = {point.batch_size: point.device_bound_index for point in points if point.mode == mode}
        place = crossover(index)
        found.append(ModeCrossover(mode=mode, where=place.where, batch_size=place.batch))
    return found
