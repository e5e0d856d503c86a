"""Study of one step of one mode: its operators, their times, and the compiler's output."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import msgspec

from service.anatomy.errors import StudyError
from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.operators.calls import OperatorCall, record
from service.anatomy.operators.compiled import CompilerReport, read_compiled
from service.anatomy.operators.device_work import NO_DEVICE, DeviceWork, device_work, reported_waits
from service.anatomy.operators.dispatch_keys import thread_keys
from service.anatomy.operators.finding import DispatchShare, OperatorsArguments, OperatorsFinding
from service.anatomy.operators.graph_breaks import trace
from service.anatomy.operators.kernels import NO_KERNELS, kernels_of
from service.anatomy.operators.lowering import read_lowering
from service.anatomy.operators.native import NativeSamples, sample_native
from service.anatomy.operators.records import OperatorRecord, OperatorRecorder
from service.anatomy.operators.rows import Sync, agreeing, copies, operator_rows, syncs
from service.anatomy.operators.times import OperatorTimes, time_before_profiling, time_operators
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_case, resolve_modes
from service.measure.cases import Bench, Case
from service.measure.split import measured_split, sampled_split
from service.protocol.modes import MODES
from service.statistics.intervals import Interval

__all__ = ["OperatorsArguments", "OperatorsFinding", "list_operators"]


@dataclass(frozen=True, slots=True)
class _OperatorList:
    """`step`: the step's seconds; on CUDA of before the list was made, as making it attaches the profiler."""

    calls: tuple[OperatorCall, ...]
    records: list[OperatorRecord] | None
    times: OperatorTimes
    step: Interval


def list_operators(bench: Bench, arguments: OperatorsArguments, report: Report) -> OperatorsFinding:
    """List one step's operators. Raises StudyError for a package, and for what is not configured."""
    began = perf_counter()
    resolve_modes(bench, arguments.mode)
    bucket = resolve_bucket(bench, arguments.batch_size)
    effect = MODES[arguments.mode].effect(bench.device.type)
    if effect.package is not None or effect.captured:
        instead = "compiled" if effect.compiles else "inference_mode, whose operators it replays"
        message = f"{arguments.mode} is one native call, which lists no operators: try {instead}"
        raise StudyError("invalid_request", message, "mode")
    case = resolve_case(bench, arguments.mode, bucket, arguments.phase, report)
    compiled = effect.compiles
    if compiled:
        report("tracing for graph breaks")
        trace(bench, case)
    prepared = perf_counter() - began
    compiler = read_compiled(bench, case, report) if compiled else None
    attached = attached_note()
    listed = _list(bench, case, report)
    native = sample_native(bench, case, report)
    lowering = None
    if arguments.lowering:
        lowering = read_lowering(bench, case, compiled, arguments.operator, report)
    notes = [*attached, *_notes(bench, listed, native)]
    kernels = kernels_of(bench, case, report)
    if kernels is None and bench.device.type == "cuda":
        notes.append(NO_KERNELS)
    found = _finding(bench, case, arguments, listed, compiler, native, prepared, notes)
    return msgspec.structs.replace(found, kernel_table=kernels, lowering=lowering)


def _list(bench: Bench, case: Case, report: Report) -> _OperatorList:
    before = time_before_profiling(bench, case, report) if bench.device.type == "cuda" else None
    report("recording one step")
    calls = record(case, 1, operands=True)[0].calls
    thread = thread_keys(MODES[case.mode], bench.device, bench.precision)
    with OperatorRecorder(thread) as seen:
        case.call()
    records = seen.seen if agreeing(calls, seen.seen) else None
    times = time_operators(bench, case, calls, report)
    return _OperatorList(calls, records, times, before or times.plain)


def _finding(
    bench: Bench,
    case: Case,
    arguments: OperatorsArguments,
    listed: _OperatorList,
    compiler: CompilerReport | None,
    native: NativeSamples,
    prepared: float,
    notes: list[str],
) -> OperatorsFinding:
    times = listed.times
    work = device_work(bench, case)
    effect = MODES[case.mode].effect(bench.device.type)
    operators = operator_rows(listed.calls, listed.records, times)
    spent = sum(times.own_seconds)
    waits = [Sync(operator=None, kind="reported", line=line) for line in reported_waits(bench, case)]
    return OperatorsFinding(
        mode=case.mode,
        effective=effect.name,
        reason=effect.reason,
        device=bench.device.type,
        batch_size=arguments.batch_size,
        batch_bucket=case.buffers.bucket,
        phase=case.phase,
        step_seconds=MedianSeconds.of(listed.step),
        profiled_seconds=MedianSeconds.of(times.profiled),
        event_seconds=times.event_seconds,
        operators_seconds=spent,
        operators_share=spent / times.plain.value,
        tail_seconds=times.tail_seconds,
        accounted_share=times.accounted_seconds / times.plain.value,
        dispatch=_dispatch(listed.step, native, work),
        operators=operators,
        copies=copies(listed.calls, operators),
        syncs=syncs(operators, listed.records) + waits,
        kernels=work.step.kernels if work else None,
        launches=work.step.launches if work else None,
        no_device=work.step.unknown if work else NO_DEVICE,
        native=native if arguments.native else None,
        prepare_seconds=prepared,
        notes=notes,
        **_compiled_fields(compiler),
    )


def _dispatch(step: Interval, native: NativeSamples, work: DeviceWork | None) -> DispatchShare | None:
    if work is not None:
        kernels = work.kernel_seconds
        return None if kernels is None else DispatchShare.of(measured_split(step, kernels))
    split = sampled_split(native.sides, step)
    return None if split is None else DispatchShare.of(split)


def _compiled_fields(compiler: CompilerReport | None) -> dict[str, Any]:
    if compiler is None:
        return {}
    return {
        "graphs": compiler.tracing.graphs,
        "graph_break_count": compiler.tracing.graph_break_count,
        "graph_breaks": compiler.tracing.graph_breaks,
        "recompiles": compiler.recompiles,
        "guards": compiler.guards,
        "wrapper": compiler.times,
        "fused_kernels": compiler.fused_kernels,
        "generated_code": compiler.generated_code,
    }


def _notes(bench: Bench, listed: _OperatorList, native: NativeSamples) -> list[str]:
    unknown = bench.device.type == "cpu" and native.kernel_share is None
    notes = [f"dispatch is unknown: {native.reason}"] if unknown else []
    if listed.records is None:
        notes.append(
            "keys, views and lines are unknown: a dispatch mode and the profiler recorded different calls"
        )
    if bench.device.type == "cpu":
        notes.append("on a CPU an operator's host time contains its kernel, and a sync point does not wait")
    return notes
