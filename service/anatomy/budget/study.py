"""Study of amortisation: dispatch and kernel per step over batches, and whether compiling will help."""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.anatomy.budget.gains import ModeGain, mode_gains
from service.anatomy.budget.points import BatchPoint, ModeCrossover, crossovers, make_point
from service.anatomy.budget.quantities import Overrides, TimedCases, budget_of, with_own_step
from service.anatomy.budget.steps import Steps, disturbed_note, ready_cases, split_steps, time_steps
from service.anatomy.budget.verdict import Budget
from service.anatomy.errors import StudyError
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_modes
from service.measure.cases import Bench
from service.measure.roof import measure_roof
from service.protocol.modes import MODES
from service.protocol.status import MemoryBandwidth
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


class BudgetFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Amortisation over batches, the crossover of each mode, and the budget of one step.

    `gains` are of the other modes at the budget's batch, where its own mode was measured too. `bandwidth`
    is the roof of the points, over a buffer as large as the weights; None without points.
    """

    device: str
    threads: int | None
    rounds: int
    null_kernel_seconds: float
    bandwidth: MemoryBandwidth | None
    points: list[BatchPoint]
    crossovers: list[ModeCrossover]
    budget: Budget
    gains: list[ModeGain]
    notes: list[str]


def draw_budget(bench: Bench, arguments: BudgetArguments, report: Report) -> BudgetFinding:
    """Measure modes over batches and make the budget.

    Raises StudyError for a mode or batch not configured, and where the parts of a step are unknown.
    """
    mode, batch = _budgeted(bench, arguments)
    modes = _modes(bench, arguments.modes)
    batches = sorted({resolve_bucket(bench, size) for size in arguments.batch_sizes or bench.buffers})
    cases, notes = ready_cases(bench, modes, batches, report)
    notes += attached_note()
    steps = time_steps(bench, cases, arguments.rounds, report) if cases else Steps({}, {}, {}, {})
    notes += disturbed_note(steps)
    overrides = _overrides(arguments)
    timed = with_own_step(bench, (mode, batch), overrides, arguments.rounds, TimedCases(cases, steps), report)
    null = measure_null_kernel(bench.device).seconds["alone"]
    # On CUDA this attaches the profiler: all of the host's times have been taken by now.
    splits = split_steps(bench, cases, steps)
    budget, budget_notes = budget_of(bench, (mode, batch), overrides, timed, splits, report)
    roof = measure_roof(bench) if cases else None
    points = [make_point(bench, key, steps, splits[key], null, roof) for key in cases] if roof else []
    return BudgetFinding(
        device=bench.device.type,
        threads=bench.settings.threads,
        rounds=arguments.rounds,
        null_kernel_seconds=null,
        bandwidth=roof.bandwidth if roof else None,
        points=points,
        crossovers=crossovers(points),
        budget=budget,
        gains=mode_gains((mode, batch), steps, splits, bench.device.type),
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
