"""Study of one step of one mode: its operators, their times, and the compiler's output."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import msgspec

from models.served import NoTwin
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
from service.anatomy.operators.native import (
    NativeSamples,
    late,
    left_out,
    note_of_cut,
    sample_native,
    sampling_seconds,
)
from service.anatomy.operators.records import OperatorRecord, OperatorRecorder
from service.anatomy.operators.rows import Sync, agreeing, copies, operator_rows, syncs
from service.anatomy.operators.times import OperatorTimes, time_before_profiling, time_operators
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_case, resolve_modes
from service.anatomy.timeline.tax import OF_DECODE
from service.measure.cases import Bench, Case
from service.measure.floors import floors, measured_split, prepare_floors, split_by_floor
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
    no_floor = _prepare_floor(bench, case, report)
    prepared = perf_counter() - began
    compiler = read_compiled(bench, case, report) if compiled else None
    attached = attached_note()
    listed = _list(bench, case, report)
    taken = perf_counter() - began - prepared
    sampled = sampling_seconds(taken)
    native = _native(bench, case, arguments, taken, report)
    lowering = None
    if arguments.lowering:
        lowering = read_lowering(bench, case, compiled, arguments.operator, report)
    notes = [*attached, *_notes(bench, case, listed, no_floor)]
    if native is not None and native.samples and (cut := note_of_cut(sampled)):
        notes.append(cut)
    kernels = kernels_of(bench, case, report)
    if kernels is None and bench.device.type == "cuda":
        notes.append(NO_KERNELS)
    report("calibrating dispatch")
    found = _finding(bench, case, arguments, listed, compiler, native, prepared, notes)
    return msgspec.structs.replace(found, kernel_table=kernels, lowering=lowering)


def _native(
    bench: Bench, case: Case, arguments: OperatorsArguments, taken: float, report: Report
) -> NativeSamples | None:
    """Native functions of the step, unless switched off or too slow for ANSWER_SECONDS."""
    if arguments.native is False:
        return None
    if arguments.native is None and late(taken):
        return left_out()
    return sample_native(bench, case, report, sampling_seconds(taken))


def _prepare_floor(bench: Bench, case: Case, report: Report) -> str | None:
    """Build the hollow twin on a CPU; returns the reason where the model has none."""
    if bench.device.type == "cpu":
        try:
            prepare_floors(bench, case.mode, [case.buffers.bucket], report)
        except NoTwin as missing:
            return str(missing)
    return None


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
    native: NativeSamples | None,
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
        dispatch=_dispatch(bench, case, listed.step, work),
        operators=operators,
        copies=copies(listed.calls, operators),
        syncs=syncs(operators, listed.records) + waits,
        kernels=work.step.kernels if work else None,
        launches=work.step.launches if work else None,
        no_device=work.step.unknown if work else NO_DEVICE,
        native=native,
        prepare_seconds=prepared,
        notes=notes,
        **_compiled_fields(compiler),
    )


def _dispatch(bench: Bench, case: Case, step: Interval, work: DeviceWork | None) -> DispatchShare | None:
    if work is not None:
        kernels = work.kernel_seconds
        return None if kernels is None else DispatchShare.of(measured_split(step, kernels))
    bucket = case.buffers.bucket
    found = floors(bench, case.mode, [bucket]).get(bucket)
    return None if found is None else DispatchShare.of(split_by_floor(found, step))


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


def _notes(bench: Bench, case: Case, listed: _OperatorList, no_floor: str | None) -> list[str]:
    notes = [f"dispatch is unknown: {no_floor}"] if no_floor else []
    if listed.records is None:
        notes.append(
            "keys, views and lines are unknown: a dispatch mode and the profiler recorded different calls"
        )
    if bench.device.type == "cpu":
        if case.phase == "prefill" and no_floor is None:
            notes.append(OF_DECODE)
        notes.append("on a CPU an operator's host time contains its kernel, and a sync point does not wait")
    return notes
