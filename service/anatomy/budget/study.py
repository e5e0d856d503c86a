"""Study of amortisation: dispatch and kernel per step over batches, and whether compiling will help."""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.anatomy.budget.quantities import Overrides, budget_of
from service.anatomy.budget.steps import (
    Key,
    Steps,
    disturbed_note,
    ready_cases,
    split_steps,
    time_steps,
)
from service.anatomy.budget.verdict import Budget
from service.anatomy.errors import StudyError
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_modes
from service.measure.cases import Bench
from service.measure.floors import DispatchSplit
from service.protocol.modes import MODES
from service.statistics.boundedness import Bound, bound, crossover, device_bound_index
from service.statistics.intervals import Interval, median_interval
from service.step.null_kernel import measure_null_kernel

Positive = Annotated[float, msgspec.Meta(gt=0)]


class BudgetArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Modes and batches to measure (None: all configured), and the step of the budget.

    The budget is of `mode` (an uncompiled one; None: the first) at `batch_size` (None: the smallest).
    `ops_per_step`, `microseconds_per_op` and `kernel_microseconds` replace the measured value; with all three
    and an empty list of modes, nothing is measured.
    """

    modes: list[str] | None = None
    batch_sizes: Annotated[list[int], msgspec.Meta(min_length=1)] | None = None
    mode: str | None = None
    batch_size: int | None = None
    ops_per_step: Annotated[int, msgspec.Meta(ge=1)] | None = None
    microseconds_per_op: Positive | None = None
    kernel_microseconds: Positive | None = None
    rounds: Annotated[int, msgspec.Meta(ge=6, le=500)] = 11


class BatchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A decode step of one mode at one batch.

    `without_dispatch_speedup` is the step over its kernels and one empty operator: the gain of removing all
    other dispatch, on CUDA by a graph. On a CPU `source` is `calibrated`: dispatch is a lower estimate and
    kernels are an upper one, so that this is a lower bound. It keeps this mode's kernels; compiling may also
    shorten those. `speedup` is measured, against the first mode. `disturbed`: more than one involuntary
    context switch in 20 steps (`switches_per_step`), whose time counts as kernel on a CPU.
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
    source: str
    switches_per_step: float
    disturbed: bool


class ModeCrossover(msgspec.Struct, frozen=True, kw_only=True):
    """The batch at which kernels take as long as dispatch; `where`: `at`, `below` or `above` all of them."""

    mode: str
    where: str
    batch_size: float | None


class BudgetFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Amortisation over batches, the crossover of each mode, and the budget of one step."""

    device: str
    threads: int | None
    rounds: int
    null_kernel_seconds: float
    points: list[BatchPoint]
    crossovers: list[ModeCrossover]
    budget: Budget
    notes: list[str]


def draw_budget(bench: Bench, arguments: BudgetArguments, report: Report) -> BudgetFinding:
    """Measure modes over batches and make the budget.

    Raises StudyError for a mode or batch not configured, and on a CPU for a model without a hollow twin.
    """
    mode, batch = _budgeted(bench, arguments)
    modes = _modes(bench, arguments.modes)
    batches = sorted({resolve_bucket(bench, size) for size in arguments.batch_sizes or bench.buffers})
    cases, notes = ready_cases(bench, modes, batches, report)
    steps = time_steps(bench, cases, arguments.rounds, report) if cases else Steps({}, {}, {})
    notes += disturbed_note(steps)
    splits = split_steps(bench, cases, steps, report)
    null = measure_null_kernel(bench.device).seconds["alone"]
    budget, budget_notes = budget_of(
        bench, (mode, batch), _overrides(arguments), arguments.rounds, steps, splits, report
    )
    points = [_point(bench, key, steps, splits[key], null) for key in cases]
    return BudgetFinding(
        device=bench.device.type,
        threads=bench.settings.threads,
        rounds=arguments.rounds,
        null_kernel_seconds=null,
        points=points,
        crossovers=_crossovers(points),
        budget=budget,
        notes=notes + budget_notes,
    )


def _overrides(arguments: BudgetArguments) -> Overrides:
    return Overrides(arguments.ops_per_step, arguments.microseconds_per_op, arguments.kernel_microseconds)


def _budgeted(bench: Bench, arguments: BudgetArguments) -> tuple[str, int]:
    plain = [name for name in bench.modes if MODES[name].effect(bench.device.type).by_operator]
    if arguments.mode is None and not plain:
        raise StudyError("invalid_request", "a budget needs an uncompiled mode: serve eager as well", "mode")
    mode = resolve_modes(bench, arguments.mode or plain[0])[0]
    if mode not in plain:
        known = ", ".join(plain)
        raise StudyError(
            "invalid_request", f"{mode} does not issue single operators; try one of {known}", "mode"
        )
    return mode, resolve_bucket(
        bench, min(bench.buffers) if arguments.batch_size is None else arguments.batch_size
    )


def _modes(bench: Bench, requested: list[str] | None) -> list[str]:
    if requested is None:
        return list(bench.modes)
    return [resolve_modes(bench, mode, "modes")[0] for mode in dict.fromkeys(requested)]


def _point(bench: Bench, key: Key, steps: Steps, split: DispatchSplit, null: float) -> BatchPoint:
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
        source=split.source,
        without_dispatch_speedup=max(1.0, step.value / (kernel + null)),
        switches_per_step=steps.switches_per_step[key],
        disturbed=steps.disturbed(key),
    )


def _crossovers(points: list[BatchPoint]) -> list[ModeCrossover]:
    found = []
    for mode in dict.fromkeys(point.mode for point in points):
        index = {point.batch_size: point.device_bound_index for point in points if point.mode == mode}
        place = crossover(index)
        found.append(ModeCrossover(mode=mode, where=place.where, batch_size=place.batch))
    return found
