"""Study of amortisation: dispatch and kernel per step over batches, and whether compiling will help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from service.anatomy.common import (
    Report,
    StudyError,
    attached_note,
    broken_notes,
    resolve_bucket,
    resolve_case,
    resolve_modes,
)
from service.anatomy.operators.calls import device_work, record
from service.anatomy.step_times import StepTimes, split_step, time_steps
from service.measure.cases import AnyBench, AnyCase
from service.measure.rounds import paired_median_ratio
from service.measure.step_costs import DispatchSplit
from service.modes import MODES
from service.statistics.boundedness import Bound, bound, crossover, device_bound_index
from service.statistics.intervals import Interval, median_interval
from service.step.roofs import null_kernel_seconds

Key = tuple[str, int]
"""Mode and batch bucket."""

Positive = Annotated[float, msgspec.Meta(gt=0)]


class BudgetArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Modes and batches to measure (None: all configured), and the step of the budget. `mode` is an
    uncompiled one (None: the first), `batch_size` None the smallest. The three numbers replace measured ones.
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
    """Steps over batches, each mode's crossover, one step's budget; `gains` of other modes at its batch."""

    device: str
    threads: int | None
    rounds: int
    null_kernel_seconds: float
    points: list[BatchPoint]
    crossovers: list[ModeCrossover]
    budget: Budget
    gains: list[ModeGain]
    notes: list[str]


def draw_budget(bench: AnyBench, arguments: BudgetArguments, report: Report) -> BudgetFinding:
    """Measure modes over batches and make the budget. Raises StudyError where a step's parts are unknown."""
    device = bench.device.type
    own = _budgeted(bench, arguments)
    requested = bench.modes if arguments.modes is None else arguments.modes
    modes = [resolve_modes(bench, mode, "modes")[0] for mode in dict.fromkeys(requested)]
    batches = sorted({resolve_bucket(bench, size) for size in arguments.batch_sizes or bench.inputs})
    given = (arguments.ops_per_step, arguments.microseconds_per_op, arguments.kernel_microseconds)
    cases, notes = ready_cases(bench, modes, batches, report)
    keys = list(cases)
    if None in given and own not in cases:
        cases[own] = resolve_case(bench, *own, bench.kind.main, report)
    notes += attached_note() + broken_notes(cases.values())
    times = time_steps(bench, cases, arguments.rounds, TIMED_STEPS, "budget", report) if cases else {}
    notes += disturbed_note(times)
    null = null_kernel_seconds(bench.device)
    # On CUDA this attaches the profiler: all of the host's times have been taken by now.
    splits = {key: _split(bench, key, cases[key], times[key]) for key in cases}
    points = [make_point(device, key, times, splits[key], null) for key in keys]
    # With a given value it is not the step that was timed.
    step = median_interval(times[own].walls).value * 1e6 if own in times and not any(given) else None
    return BudgetFinding(
        device=device,
        threads=bench.settings.threads,
        rounds=arguments.rounds,
        null_kernel_seconds=null,
        points=points,
        crossovers=[crossover_of(mode, points) for mode in dict.fromkeys(point.mode for point in points)],
        budget=make_budget(
            *own, *_quantities(cases.get(own), given, splits.get(own)), device=device, step_microseconds=step
        ),
        gains=mode_gains(own, times, splits, device),
        notes=notes,
    )


def _quantities(
    case: AnyCase | None, given: Sequence[float | None], split: DispatchSplit | None
) -> list[Quantity]:
    """Each of the three as it is given, else as measured: the two parts of the step as `split` has them."""
    if case is None or split is None or None not in given:
        return [Quantity(value=value, source="given") for value in given if value is not None]
    ops = len(record(case, 1)[0].calls)
    measured = (
        Quantity(value=ops, source="measured"),
        Quantity(value=split.dispatch.value * 1e6 / ops, source=split.source),
        Quantity(value=split.kernel.value * 1e6, source=split.source),
    )
    return [
        found if value is None else Quantity(value=value, source="given")
        for value, found in zip(given, measured, strict=True)
    ]


def _budgeted(bench: AnyBench, arguments: BudgetArguments) -> tuple[str, int]:
    plain = [name for name in bench.modes if MODES[name].effect(bench.device.type).by_operator]
    if not plain:
        raise StudyError("invalid_request", "a budget needs an uncompiled mode: serve eager as well", "mode")
    mode = resolve_modes(bench, arguments.mode or plain[0])[0]
    if mode not in plain:
        message = f"{mode} does not issue single operators; try one of {', '.join(plain)}"
        raise StudyError("invalid_request", message, "mode")
    size = min(bench.inputs) if arguments.batch_size is None else arguments.batch_size
    return mode, resolve_bucket(bench, size)


Source = Literal["measured", "sampled", "given"]

_HELP: dict[Bound, str] = {
    "launch-bound": "yes",
    "balanced": "some",
    "kernel-bound": "little by removing dispatch; only fused kernels, which move less memory, could do more",
}


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """A number of the budget: `measured` here, `given`, or `sampled` as a share of the step, on a CPU."""

    value: float
    source: Source


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """A step of `mode`: dispatch is operators × microseconds per operator, against kernels.

    `without_dispatch_speedup` is how many times as fast a step with these kernels would be without dispatch;
    None without kernels. Compiling can gain more, because it also shortens kernels. `device_bound_index` is
    the kernel share, and `bound` its class, a GPU's term.
    """

    mode: str
    batch_size: int
    ops_per_step: Quantity
    microseconds_per_op: Quantity
    kernel_microseconds: Quantity
    dispatch_microseconds: float
    device_bound_index: float
    bound: Bound
    without_dispatch_speedup: float | None
    will_compile_help: str


def step_of(dispatch: float, kernel: float, device: str) -> float:
    """Length of a step, in the unit of both: the sum on a CPU, the longer on CUDA, where they overlap."""
    return dispatch + kernel if device == "cpu" else max(dispatch, kernel)


def without_dispatch(step: float, kernel: float, left: float = 0.0) -> float:
    """How many times as fast a step is if `left` is all that remains of its dispatch."""
    return max(1.0, step / (kernel + left))


def make_budget(
    mode: str,
    batch_size: int,
    ops_per_step: Quantity,
    microseconds_per_op: Quantity,
    kernel_microseconds: Quantity,
    *,
    device: str = "cpu",
    step_microseconds: float | None = None,
) -> Budget:
    """The budget of these three quantities. Raises ValueError where dispatch and kernels are both 0.

    On a CPU the step is dispatch + kernels. On CUDA the two overlap, and the step is `step_microseconds`, or
    without it the longer of the two.
    """
    dispatch = ops_per_step.value * microseconds_per_op.value
    kernel = kernel_microseconds.value
    index = device_bound_index(kernel, dispatch)
    word = bound(index)
    if index is None or word is None:
        raise ValueError("a step without dispatch and without kernels has no budget")
    timed = None if device == "cpu" else step_microseconds
    step = step_of(dispatch, kernel, device) if timed is None else timed
    speedup = without_dispatch(step, kernel) if kernel > 0 else None
    return Budget(
        mode=mode,
        batch_size=batch_size,
        ops_per_step=ops_per_step,
        microseconds_per_op=microseconds_per_op,
        kernel_microseconds=kernel_microseconds,
        dispatch_microseconds=dispatch,
        device_bound_index=index,
        bound=word,
        without_dispatch_speedup=speedup,
        will_compile_help=_help(word, 1 - index, speedup, device),
    )


def _help(word: Bound, share: float, speedup: float | None, device: str) -> str:
    of_step = f"{share:.0%} of the step is dispatch"
    if device != "cpu":
        of_step = f"dispatch is {share:.0%} of dispatch + kernel, which overlap"
    gain = "this step has no kernels: without dispatch it would take no time"
    if speedup is not None:
        gain = f"without dispatch it would be about {speedup:.3g} times as fast, with the same kernels"
    return f"{_HELP[word]}: {of_step}; {gain}"


class ModeGain(msgspec.Struct, frozen=True, kw_only=True):
    """`mode` against the budget's own mode, at the budget's batch. The ratios are its seconds over that
    mode's, None where those are 0; each bound combines the worse ends of both. `speedup` is paired by round.
    """

    mode: str
    effective: str
    dispatch_ratio: Interval | None
    kernel_ratio: Interval | None
    speedup: Interval


def mode_gains(
    key: Key, times: Mapping[Key, StepTimes], splits: Mapping[Key, DispatchSplit], device_type: str
) -> list[ModeGain]:
    """The gain of every other mode in `splits` at the batch of `key`; none where `key` is not in it."""
    if key not in splits:
        return []
    own = splits[key]
    return [
        ModeGain(
            mode=mode,
            effective=MODES[mode].effect(device_type).name,
            dispatch_ratio=_ratio(split.dispatch, own.dispatch),
            kernel_ratio=_ratio(split.kernel, own.kernel),
            speedup=paired_median_ratio(times[key].walls, times[mode, batch].walls),
        )
        for (mode, batch), split in splits.items()
        if batch == key[1] and mode != key[0]
    ]


def _ratio(above: Interval, below: Interval) -> Interval | None:
    if below.value <= 0:
        return None
    return Interval(
        above.value / below.value,
        max(0.0, above.low) / below.high if below.high > 0 else 0.0,
        above.high / below.low if below.low > 0 else float("inf"),
        min(above.samples, below.samples),
    )


class BatchPoint(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one mode at one batch, of a language model in decode; `speedup` is against the first mode.

    `without_dispatch_speedup` is the step over its kernels and one empty operator: the gain of removing all
    other dispatch. `disturbed`: more than one involuntary context switch in 20 steps.
    """

    mode: str
    effective: str
    batch_size: int
    step: Interval
    dispatch_seconds: Interval
    kernel_seconds: Interval
    device_bound_index: float
    bound: Bound
    without_dispatch_speedup: float
    speedup: Interval
    source: str
    disturbed: bool


class ModeCrossover(msgspec.Struct, frozen=True, kw_only=True):
    """Where kernels take as long as dispatch: `at`, `below` or `above` all measured, or `several`."""

    mode: str
    where: str
    batch_size: float | None


def make_point(
    device: str, key: Key, times: Mapping[Key, StepTimes], split: DispatchSplit, null: float
) -> BatchPoint:
    mode, batch = key
    own = times[key]
    first = next(iter(times))[0]
    step = median_interval(own.walls)
    kernel = split.kernel.value
    index = device_bound_index(kernel, split.dispatch.value) or 0.0
    return BatchPoint(
        mode=mode,
        effective=MODES[mode].effect(device).name,
        batch_size=batch,
        step=step,
        dispatch_seconds=split.dispatch,
        kernel_seconds=split.kernel,
        device_bound_index=index,
        bound=bound(index) or "launch-bound",
        speedup=paired_median_ratio(times[first, batch].walls, own.walls),
        source=split.source,
        without_dispatch_speedup=without_dispatch(step.value, kernel, null),
        disturbed=own.disturbed,
    )


def crossover_of(mode: str, points: list[BatchPoint]) -> ModeCrossover:
    at = crossover({point.batch_size: point.device_bound_index for point in points if point.mode == mode})
    return ModeCrossover(mode=mode, where=at.where, batch_size=at.batch)


TIMED_STEPS = 3
"""Of a round, in a row."""


def ready_cases(
    bench: AnyBench, modes: list[str], batches: list[int], report: Report
) -> tuple[dict[Key, AnyCase], list[str]]:
    """Warmed steps of the main phase, and a note for each mode that does not run here."""
    cases: dict[Key, AnyCase] = {}
    phase = bench.kind.main
    notes = []
    for mode in modes:
        try:
            cases |= {(mode, batch): resolve_case(bench, mode, batch, phase, report) for batch in batches}
        except StudyError as error:
            notes.append(error.message)
    return cases, notes


def disturbed_note(times: Mapping[Key, StepTimes]) -> list[str]:
    cells = [f"{mode} at {batch}" for (mode, batch), own in times.items() if own.disturbed]
    note = f"disturbed: other work took the core more than once in 20 steps of {', '.join(cells)}; "
    return [f"{note}measure again on a quiet machine"] if cells else []


def _split(bench: AnyBench, key: Key, case: AnyCase, times: StepTimes) -> DispatchSplit:
    """Dispatch and kernels of a step. Raises StudyError, with the reason, where they are unknown."""
    work = device_work(bench, case)
    split = split_step(median_interval(times.walls if work is None else times.hosts), times.samples, work)
    if split is not None:
        return split
    reason = f"no sample fell into a step of {key[0]} at {key[1]}: try again"
    if work is not None:
        reason = f"kernel time is unknown: {work.step.unknown}"
    elif times.no_samples is not None:
        reason = f"dispatch is unknown on this CPU: {times.no_samples}"
    raise StudyError("unsupported_here", reason)
