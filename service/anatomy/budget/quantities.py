"""The three quantities of a budget, each overridden or measured, and the budget itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from service.anatomy.budget.steps import Key, Steps, disturbed_note, split_steps, time_steps
from service.anatomy.budget.verdict import Budget, Quantity, make_budget
from service.anatomy.operators.calls import record
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_case
from service.measure.cases import Bench, Case
from service.measure.split import DispatchSplit
from service.statistics.intervals import median_interval


class Overrides(NamedTuple):
    """Values that replace measured ones; None: measure it."""

    ops_per_step: float | None
    microseconds_per_op: float | None
    kernel_microseconds: float | None

    @property
    def complete(self) -> bool:
        """Whether nothing is left to measure."""
        return all(value is not None for value in self)


class TimedCases(NamedTuple):
    """Steps, and what they took."""

    cases: Mapping[Key, Case]
    steps: Steps


def with_own_step(
    bench: Bench, key: Key, overrides: Overrides, rounds: int, timed: TimedCases, report: Report
) -> TimedCases:
    """`timed` where the budget at `key` needs no other step; else that step alone, timed here."""
    if overrides.complete or key in timed.cases:
        return timed
    cases = {key: resolve_case(bench, *key, "decode", report)}
    return TimedCases(cases, time_steps(bench, cases, rounds, report))


def budget_of(
    bench: Bench,
    key: Key,
    overrides: Overrides,
    timed: TimedCases,
    splits: Mapping[Key, DispatchSplit],
    report: Report,
) -> tuple[Budget, list[str]]:
    """The budget of the step at `key`, which was `timed`, and notes. One not in `splits` is split here."""
    mode, batch = key
    if overrides.complete:
        quantities = [Quantity(value=value, source="given") for value in overrides if value is not None]
        return make_budget(mode, batch, *quantities, device=bench.device.type), []
    notes: list[str] = []
    if key not in splits:
        splits = split_steps(bench, timed.cases, timed.steps)
        notes = disturbed_note(timed.steps)
    found = _found(bench, key, splits[key], report)
    quantities = [
        other if value is None else Quantity(value=value, source="given")
        for value, other in zip(overrides, found, strict=True)
    ]
    # With an override it is not the step that was timed.
    as_timed = all(value is None for value in overrides)
    step = median_interval(timed.steps.walls[key]).value * 1e6 if as_timed else None
    return make_budget(mode, batch, *quantities, device=bench.device.type, step_microseconds=step), notes


def _found(bench: Bench, key: Key, split: DispatchSplit, report: Report) -> list[Quantity]:
    """All three as measured, the two parts of the step as `split` has them."""
    ops = len(record(resolve_case(bench, *key, "decode", report), 1)[0].calls)
    return [
        Quantity(value=ops, source="measured"),
        Quantity(value=split.dispatch.value * 1e6 / ops, source=split.source),
        Quantity(value=split.kernel.value * 1e6, source=split.source),
    ]
