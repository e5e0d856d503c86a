"""The three quantities of a budget, each overridden or measured, and the budget itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.anatomy.budget.steps import Key, Steps, disturbed_note, split_steps, time_steps
from service.anatomy.budget.verdict import Budget, Quantity, Source, make_budget
from service.anatomy.operators.calls import record
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_case
from service.measure.cases import Bench
from service.measure.floors import DispatchSplit
from service.statistics.intervals import median_interval


class Overrides(NamedTuple):
    """Values that replace measured ones; None: measure it."""

    ops_per_step: float | None
    microseconds_per_op: float | None
    kernel_microseconds: float | None


def budget_of(
    bench: Bench,
    key: Key,
    overrides: Overrides,
    rounds: int,
    steps: Steps,
    splits: Mapping[Key, DispatchSplit],
    report: Report,
) -> tuple[Budget, list[str]]:
    """The budget of the step at `key`, and notes. A step that is not in `splits` is timed here."""
    mode, batch = key
    if all(value is not None for value in overrides):
        quantities = [Quantity(value=value, source="given") for value in overrides if value is not None]
        return make_budget(mode, batch, *quantities, device=bench.device.type), []
    notes: list[str] = []
    if key not in splits:
        case = resolve_case(bench, mode, batch, "decode", report)
        steps = time_steps(bench, {key: case}, rounds, report)
        splits = split_steps(bench, {key: case}, steps, report)
        notes = disturbed_note(steps)
    found = _found(bench, key, splits[key], report)
    quantities = [
        other if value is None else Quantity(value=value, source="given")
        for value, other in zip(overrides, found, strict=True)
    ]
    # With an override it is not the step that was timed.
    as_timed = all(value is None for value in overrides)
    step = median_interval(steps.walls[key]).value * 1e6 if as_timed else None
    return make_budget(mode, batch, *quantities, device=bench.device.type, step_microseconds=step), notes


def _found(bench: Bench, key: Key, split: DispatchSplit, report: Report) -> list[Quantity]:
    """All three as measured: on a CPU dispatch is calibrated and kernels are the rest of the step."""
    ops = len(record(resolve_case(bench, *key, "decode", report), 1)[0].calls)
    calibrated = split.source == "calibrated"
    dispatch: Source = "calibrated" if calibrated else "measured"
    kernel: Source = "residual" if calibrated else "measured"
    return [
        Quantity(value=ops, source="measured"),
        Quantity(value=split.dispatch.value * 1e6 / ops, source=dispatch),
        Quantity(value=split.kernel.value * 1e6, source=kernel),
    ]
