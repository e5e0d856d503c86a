"""The three quantities of a budget, each as it was given or else as it is found here, and its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.anatomy.budget.steps import Key, Parts, Say, Steps, disturbed_note, take_apart, time_steps
from service.anatomy.budget.verdict import Budget, Quantity, Source, judge
from service.anatomy.operators.calls import record
from service.anatomy.resolve import choose_case
from service.measure.cases import Bench
from service.statistics.intervals import median_interval


class Given(NamedTuple):
    """What whoever asked has given; None where it is to be found here."""

    ops_per_step: float | None
    microseconds_per_op: float | None
    kernel_microseconds: float | None


def budget_of(
    bench: Bench, key: Key, given: Given, rounds: int, steps: Steps, parts: Mapping[Key, Parts], say: Say
) -> tuple[Budget, list[str]]:
    """The budget of the step at `key`, and notes; a step that nobody drew is measured for itself."""
    mode, batch = key
    if all(value is not None for value in given):
        quantities = [Quantity(value=value, source="given") for value in given if value is not None]
        return judge(mode, batch, *quantities, device=bench.device.type), []
    notes: list[str] = []
    if key not in parts:
        case = choose_case(bench, mode, batch, "decode", say)
        steps = time_steps(bench, {key: case}, rounds, say)
        parts, notes = take_apart(bench, {key: case}, steps, say), disturbed_note(steps)
    found = _found(bench, key, parts[key], say)
    quantities = [
        other if value is None else Quantity(value=value, source="given")
        for value, other in zip(given, found, strict=True)
    ]
    # What is given makes it another step than the one that was timed.
    as_timed = all(value is None for value in given)
    step = median_interval(steps.walls[key]).value * 1e6 if as_timed else None
    return judge(mode, batch, *quantities, device=bench.device.type, step_microseconds=step), notes


def _found(bench: Bench, key: Key, parts: Parts, say: Say) -> list[Quantity]:
    """All three: on a CPU dispatch is calibrated and kernels are what it leaves of the step."""
    ops = len(record(choose_case(bench, *key, "decode", say), 1)[0].calls)
    calibrated = parts.source == "calibrated"
    dispatch: Source = "calibrated" if calibrated else "measured"
    kernel: Source = "residual" if calibrated else "measured"
    return [
        Quantity(value=ops, source="measured"),
        Quantity(value=parts.dispatch.value * 1e6 / ops, source=dispatch),
        Quantity(value=parts.kernel.value * 1e6, source=kernel),
    ]
