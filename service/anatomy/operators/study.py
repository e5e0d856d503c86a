"""Study of one step of one mode: its operators, their times, and the compiler's output."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from statistics import median
from time import perf_counter, thread_time_ns
from typing import Literal

import msgspec

from service.anatomy.common import (
    MedianSeconds,
    Report,
    StudyError,
    attached_note,
    resolve_bucket,
    resolve_case,
    resolve_modes,
    resolve_phase,
)
from service.anatomy.operators.calls import (
    NO_DEVICE,
    SAME_CALL,
    OperatorCall,
    OperatorRecord,
    OperatorRecorder,
    StepCalls,
    device_work,
    record,
    reported_waits,
    thread_keys,
)
from service.anatomy.operators.compiled import FusedKernel, GraphBreak, Guard, WrapperTimes, read_compiled
from service.anatomy.step_times import split_step
from service.measure.cases import AnyBench, AnyCase
from service.measure.cpu_sampler import Place, SamplerError, counts_of
from service.measure.step_costs import SAMPLED_SECONDS, KernelTable, kernel_table
from service.measure.symbols import rule_of
from service.modes import MODES, Effect
from service.records import Phase, SampleCounts, Side
from service.statistics.boundedness import NO_SHARE
from service.statistics.intervals import Interval, median_interval
from service.step.buffers import lead_steps


class OperatorsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The step to list; `phase` None: the main one of what is served."""

    mode: str = "eager"
    batch_size: int = 1
    phase: Phase | None = None


class OperatorsFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `step_seconds` is the whole step on a CPU; on CUDA the time until the call returns, taken
    before the profiler's first session in this study, which may lengthen all later steps. Its dispatch and
    kernels are sampled on a CPU, and add up to it; on CUDA they overlap. None: unknown.

    `kernels`, `launches` and `kernel_table` are None on a CPU, and `kernels` where the profiler lost some;
    `no_device` has the reason. The fields from `graphs` to `generated_code` are None for modes that are not
    compiled. `operators_share` is that of the listed calls, less `event_seconds` per inner event, of the
    plain steps that alternated with the profiled ones.
    """

    mode: str
    effective: str
    reason: str | None
    device: str
    batch_size: int
    batch_bucket: int
    phase: Phase
    step_seconds: MedianSeconds
    profiled_seconds: MedianSeconds
    event_seconds: float
    operators_share: float
    dispatch_seconds: Interval | None
    kernel_seconds: Interval | None
    kernel_share: float | None
    operators: list[Operator]
    copies: list[Copy]
    syncs: list[Sync]
    kernels: int | None
    launches: int | None
    kernel_table: KernelTable | None = None
    no_device: str | None
    graphs: int | None = None
    graph_break_count: int | None = None
    graph_breaks: list[GraphBreak] | None = None
    recompiles: int | None = None
    guards: list[Guard] | None = None
    wrapper: WrapperTimes | None = None
    fused_kernels: list[FusedKernel] | None = None
    generated_code: str | None = None
    native: NativeSamples
    notes: list[str]


def list_operators(bench: AnyBench, arguments: OperatorsArguments, report: Report) -> OperatorsFinding:
    """List one step's operators. Raises StudyError for a package, and for what is not configured."""
    effect = _effect(bench, arguments.mode)
    bucket = resolve_bucket(bench, arguments.batch_size)
    phase = resolve_phase(bench, arguments.phase)
    case = resolve_case(bench, arguments.mode, bucket, phase, report)
    compiler = read_compiled(bench, case, report) if effect.compiles else {}
    notes = attached_note()
    on_cuda = bench.device.type == "cuda"
    before = time_before_profiling(bench, case, report) if on_cuda else None
    report("recording one step")
    calls = record(case, 1, operands=True)[0].calls
    records = _records(bench, case, calls)
    times = time_operators(bench, case, calls, report)
    step = before or times.plain
    native = sample_native(bench, case, report)
    kernels = kernel_table(bench, case, report) if on_cuda else None
    work = device_work(bench, case)
    split = split_step(step, native.sides, work)
    operators = operator_rows(calls, records, times)
    waits = [Sync(operator=None, kind="reported", line=line) for line in reported_waits(bench, case)]
    return OperatorsFinding(
        mode=case.mode,
        effective=effect.name,
        reason=effect.reason,
        device=bench.device.type,
        batch_size=arguments.batch_size,
        batch_bucket=bucket,
        phase=case.phase,
        step_seconds=MedianSeconds.of(step),
        profiled_seconds=MedianSeconds.of(times.profiled),
        event_seconds=times.event_seconds,
        operators_share=sum(times.own_seconds) / times.plain.value,
        dispatch_seconds=split.dispatch if split else None,
        kernel_seconds=split.kernel if split else None,
        kernel_share=split.kernel.value / (split.dispatch.value + split.kernel.value) if split else None,
        operators=operators,
        copies=copies(calls, operators),
        syncs=syncs(operators, records) + waits,
        kernels=work.step.kernels if work else None,
        launches=work.step.launches if work else None,
        kernel_table=kernels,
        no_device=work.step.unknown if work else NO_DEVICE,
        native=native,
        notes=[*notes, *_notes(on_cuda, kernels, native, split is not None, records)],
        **compiler,
    )


def _notes(
    on_cuda: bool,
    kernels: KernelTable | None,
    native: NativeSamples,
    is_split: bool,
    records: list[OperatorRecord] | None,
) -> Iterator[str]:
    if on_cuda and kernels is None:
        yield "kernels are unknown: the profiler saw none; is CUPTI allowed here? run `make gpu-check`"
    if not on_cuda and not is_split:
        yield f"dispatch is unknown: {native.reason or NO_SHARE}"
    if records is None:
        yield "keys, views and lines are unknown: a dispatch mode and the profiler recorded different calls"
    if not on_cuda:
        yield "on a CPU an operator's host time contains its kernel, and a sync point does not wait"


def _effect(bench: AnyBench, mode: str) -> Effect:
    resolve_modes(bench, mode)
    effect = MODES[mode].effect(bench.device.type)
    if effect.package is not None or effect.captured:
        instead = "compiled" if effect.compiles else "inference_mode, whose operators it replays"
        message = f"{mode} is one native call, which lists no operators: try {instead}"
        raise StudyError("invalid_request", message, "mode")
    return effect


def _records(bench: AnyBench, case: AnyCase, calls: tuple[OperatorCall, ...]) -> list[OperatorRecord] | None:
    with OperatorRecorder(thread_keys(MODES[case.mode], bench.device, bench.precision)) as recorder:
        case.call()
    names = [SAME_CALL.get(call.name, call.name) for call in calls]
    seen = [record.schema_name.partition(".")[0] for record in recorder.seen]
    return recorder.seen if seen == names else None


SyncKind = Literal["item", "nonzero", "equal", "device_to_host", "reported"]
SYNCHRONISING: dict[str, SyncKind] = {
    "aten::_local_scalar_dense": "item",
    "aten::nonzero": "nonzero",
    "aten::equal": "equal",
}
"""Operators that need a value on the host before they return."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One call below autograd, in order. `keys` are the dispatch keys whose kernels it runs; `within` the
    enclosing composite operators. `host_seconds` is the call with all inner calls and, on a CPU, its kernel;
    `lead_seconds` the time since the call before. `cumulative_seconds` sums `host_seconds`.
    """

    name: str
    overload: str
    keys: list[str] | None
    shapes: list[list[int]]
    strides: list[list[int]]
    dtypes: list[str]
    host_seconds: float
    cumulative_seconds: float
    lead_seconds: float
    is_view: bool | None
    within: list[str]
    line: str | None


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One `aten::copy_`: `operator` is the index in `operators` of the call that made it."""

    operator: int
    name: str
    bytes: int
    line: str | None


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """A point where the host waits for a value of the device; on a CPU there is no wait."""

    operator: int | None
    kind: SyncKind
    line: str | None


def operator_rows(
    calls: tuple[OperatorCall, ...], records: list[OperatorRecord] | None, times: OperatorTimes
) -> list[Operator]:
    """The rows in order; keys, views and lines are None without `records`."""
    seen: list[OperatorRecord | None] = list(records) if records is not None else [None] * len(calls)
    sums = accumulate(times.own_seconds)
    return [
        Operator(
            name=call.name,
            overload=call.overload or "default",
            keys=record.keys if record else None,
            shapes=[list(o.shape) for o in call.operands],
            strides=[list(o.strides) for o in call.operands],
            dtypes=[str(o.dtype).removeprefix("torch.") for o in call.operands],
            host_seconds=own,
            cumulative_seconds=total,
            lead_seconds=lead,
            is_view=record.is_view if record else None,
            within=list(call.within),
            line=str(record.line) if record and record.line else None,
        )
        for call, record, own, total, lead in zip(
            calls, seen, times.own_seconds, sums, times.lead_seconds, strict=True
        )
    ]


def copies(calls: tuple[OperatorCall, ...], operators: list[Operator]) -> list[Copy]:
    """Every copy of the step, including those that an operator's kernel makes."""
    return [
        Copy(operator=index, name=call.name, bytes=target.bytes, line=operators[index].line)
        for index, call in enumerate(calls)
        for target in call.copied
    ]


def syncs(operators: list[Operator], records: list[OperatorRecord] | None) -> list[Sync]:
    """Calls of `SYNCHRONISING`, and copies from a device to the host."""
    found = []
    for index, operator in enumerate(operators):
        kind = SYNCHRONISING.get(operator.name)
        if kind is None and records is not None and records[index].to_host:
            kind = "device_to_host"
        if kind is not None:
            found.append(Sync(operator=index, kind=kind, line=operator.line))
    return found


BUDGET_SECONDS = 1.2
"""No round begins after this."""

MOST_STEPS = 40
LEAST_STEPS = 6
"""Plain steps, and as many profiled: the most within the budget, and the fewest for an interval."""

SHORT = (2, 4)
LONG = (1, 3)
"""Untimed steps, then timed ones in a row."""


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Per call of the step, in order: its seconds and those since the call before it, less events' cost."""

    plain: Interval
    profiled: Interval
    event_seconds: float
    own_seconds: list[float]
    lead_seconds: list[float]


def time_before_profiling(bench: AnyBench, case: AnyCase, report: Report) -> Interval:
    """Seconds of plain steps on CUDA, before the profiler's library is attached, which may lengthen them."""
    report("timing the step without the profiler")
    plain: list[float] = []
    began = perf_counter()
    while _go_on(len(plain), began):
        plain += _plain(bench, case, *SHORT)
    return median_interval(plain)


def _go_on(steps: int, began: float) -> bool:
    return steps < LEAST_STEPS or (steps < MOST_STEPS and perf_counter() - began < BUDGET_SECONDS)


def _plain(bench: AnyBench, case: AnyCase, untimed: int, timed: int) -> list[float]:
    """Seconds of a block of plain steps, each issued to an idle device."""
    for _ in range(untimed):
        case.call_seconds()
    bench.synchronise()
    seconds = []
    for _ in range(timed):
        seconds.append(case.call_seconds())
        bench.synchronise()
    return seconds


def time_operators(
    bench: AnyBench, case: AnyCase, calls: tuple[OperatorCall, ...], report: Report
) -> OperatorTimes:
    """Rounds of plain and profiled steps, until the budget is spent.

    Raises StudyError where the step does not make the same calls each time.
    """
    plain: list[float] = []
    recorded: list[StepCalls] = []
    report("timing operators")
    began = perf_counter()
    case.call()
    bench.synchronise()
    size = SHORT if (perf_counter() - began) * MOST_STEPS < BUDGET_SECONDS else LONG
    # Not `in_rounds`: rounds end at a budget, and a round's profiled steps share one profiler session.
    # Each side begins with untimed steps, so that neither follows the other directly.
    while _go_on(len(plain), began):
        plain += _plain(bench, case, *size)
        recorded += record(case, size[1])
    names = [call.schema_name for call in calls]
    if any([call.schema_name for call in step.calls] != names for step in recorded):
        raise StudyError("unsupported_here", "this step does not make the same calls every time: try again")
    return _times(plain, recorded)


def _times(plain: list[float], recorded: list[StepCalls]) -> OperatorTimes:
    calls = recorded[0].calls
    # Of the shortest steps: other work on the machine only lengthens a step, and would count as profiler.
    longer = min(step.seconds for step in recorded) - min(plain)
    cost = max(longer, 0.0) / max(recorded[0].events, 1)
    own = [
        max(median(step.calls[index].seconds for step in recorded) - call.inner * cost, 0.0)
        for index, call in enumerate(calls)
    ]
    between = map(median, zip(*map(_gaps, recorded), strict=True))
    # Before a call begin its own event and those of the composite operators around it.
    lead = [max(gap - (1 + _newly_entered(calls, index)) * cost, 0.0) for index, gap in enumerate(between)]
    profiled = median_interval([step.seconds for step in recorded])
    return OperatorTimes(median_interval(plain), profiled, cost, own, lead)


def _gaps(step: StepCalls) -> list[float]:
    """Seconds before each call, since the one before it."""
    begins = [(call.begin_ns - step.begin_ns) / 1e9 for call in step.calls]
    ends = [begin + call.seconds for begin, call in zip(begins, step.calls, strict=True)]
    return [begin - end for begin, end in zip(begins, [0.0, *ends], strict=False)]


def _newly_entered(calls: tuple[OperatorCall, ...], index: int) -> int:
    within = calls[index].within
    before = calls[index - 1].within if index else ()
    kept = takewhile(lambda pair: pair[0] == pair[1], zip(within, before, strict=False))
    return len(within) - sum(1 for _ in kept)


SYMBOLS_SHOWN = 25
SYMBOL_CHARACTERS = 160


class NativeFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function of `binary`, its share of all samples, and the rule that classed it."""

    symbol: str
    binary: str
    side: Side
    rule: str
    share: float


class NativeSamples(msgspec.Struct, frozen=True, kw_only=True):
    """The most frequent functions, and the samples of each class. Without samples, `reason` is set."""

    symbols: list[NativeFunction] = []
    sides: SampleCounts = SampleCounts()
    reason: str | None = None


def sample_native(bench: AnyBench, case: AnyCase, report: Report) -> NativeSamples:
    """Sample steps for SAMPLED_SECONDS of CPU time, at least one. Without samples, `reason` is set."""
    if bench.device.type != "cpu":
        return NativeSamples(reason="on CUDA kernels run on the device, where no sample reaches")
    report("sampling native functions")
    try:
        for _ in range(lead_steps(case.phase)):
            case.call()
        with bench.sampler.recording() as places:
            began = thread_time_ns()
            while thread_time_ns() - began < SAMPLED_SECONDS * 1e9:
                case.call()
    except SamplerError as error:
        return NativeSamples(reason=str(error))
    return summary(places)


def summary(places: Sequence[Place]) -> NativeSamples:
    sides = counts_of(places)
    if not sides.kernel + sides.host:
        return NativeSamples(reason=NO_SHARE)
    return NativeSamples(
        symbols=[
            NativeFunction(
                symbol=place.symbol[:SYMBOL_CHARACTERS],
                binary=os.path.basename(place.binary),
                side=place.side,
                rule=rule_of(place.symbol, place.binary),
                share=count / len(places),
            )
            for place, count in Counter(places).most_common(SYMBOLS_SHOWN)
        ],
        sides=sides,
    )
