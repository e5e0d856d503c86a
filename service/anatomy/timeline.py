"""Study of one step as host and device blocks, two modes on one axis, and the share without a kernel."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from service.anatomy.common import (
    Report,
    StudyError,
    attached_note,
    broken_notes,
    resolve_bucket,
    resolve_case,
    resolve_modes,
    resolve_phase,
)
from service.anatomy.step_times import StepTimes, time_steps
from service.measure.cases import AnyBench, AnyCase
from service.measure.rounds import paired_median_ratio
from service.modes import MODES
from service.records import Phase, SampleCounts
from service.statistics.boundedness import NO_SHARE, dispatch_share
from service.statistics.intervals import Interval, median_interval
from service.step.buffers import LEAD_STEPS_UNDER_PROFILER
from service.step.profiling import attach_profiler, record_steps
from service.step.trace import (
    DEVICE_WORK,
    LAUNCH_CALLS,
    RUNTIME,
    Event,
    ProfiledStep,
    StepWork,
    clock_behind,
    complete_events,
    inside,
    match_work,
    read_steps,
    step_marks,
)


class TimelineArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`against` is a second mode on the same axis; `phase` None the main one; `out` a folder for a trace."""

    mode: str = "eager"
    against: str | None = None
    batch_size: int = 1
    phase: Phase | None = None
    out: str | None = None


class TimelineFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One or two tracks, each from the begin of its own step; `speedup` of the second is paired by round."""

    device: str
    batch_bucket: int
    phase: Phase
    tracks: list[Track]
    speedup: Interval | None = None
    files: list[str]
    notes: list[str] = []


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """One mode's step. Blocks are timed from its begin under the profiler, `profiled_seconds` in all.

    `wall` is the step's seconds without a profiler, and `stretch` the profiled step over it: blocks give the
    order of events, `wall` and `tax` their length. `kernels` and `launches` are None on a CPU, and `kernels`
    where the profiler lost some. Where `tax` is None, `no_tax` has the reason.
    """

    mode: str
    effective: str
    reason: str | None
    wall: Interval
    tax: Tax | None
    no_tax: str | None
    profiled_seconds: float
    stretch: float
    operators: int
    kernels: int | None
    launches: int | None
    kernel_seconds: float | None
    blocks: list[TraceBlock]


def draw_timeline(bench: AnyBench, arguments: TimelineArguments, report: Report) -> TimelineFinding:
    """Record the steps. Raises StudyError for arguments that cannot work or a mode that does not compile."""
    bucket = resolve_bucket(bench, arguments.batch_size)
    phase = resolve_phase(bench, arguments.phase)
    modes = resolve_modes(bench, arguments.mode)
    if arguments.against is not None:
        if arguments.against == arguments.mode:
            raise StudyError("invalid_request", "against: name another mode than mode", "against")
        modes += resolve_modes(bench, arguments.against, "against")
    cases = [resolve_case(bench, mode, bucket, phase, report) for mode in modes]
    notes = attached_note() + broken_notes(cases)
    report("timing steps without a profiler")
    times = list(time_steps(bench, dict(enumerate(cases)), ROUNDS, TIMED_STEPS, "timeline", report).values())
    report("recording steps with the profiler")
    tracks = [_track(bench, *one) for one in zip(cases, times, strict=True)]
    finding = TimelineFinding(
        device=bench.device.type,
        batch_bucket=bucket,
        phase=phase,
        tracks=tracks,
        speedup=paired_median_ratio(times[0].walls, times[1].walls) if len(times) == 2 else None,
        files=[] if arguments.out is None else [TRACE_FILE],
        notes=notes,
    )
    if arguments.out is not None:
        write(finding, Path(arguments.out))
    return finding


def _track(bench: AnyBench, case: AnyCase, times: StepTimes) -> Track:
    wall = median_interval(times.seconds)
    effect = MODES[case.mode].effect(bench.device.type)
    recorded = record_step(bench, case)
    counted = recorded.counted
    kernels = counted.kernel_seconds
    tax = tax_by_samples(times.samples) if kernels is None else tax_by_kernels(kernels, wall)
    return Track(
        mode=case.mode,
        effective=effect.name,
        reason=effect.reason,
        wall=wall,
        tax=tax,
        no_tax=None if tax else times.no_samples or counted.unknown or NO_SHARE,
        profiled_seconds=recorded.profiled_seconds,
        stretch=recorded.profiled_seconds / wall.value,
        operators=counted.operators,
        kernels=counted.kernels,
        launches=counted.launches,
        kernel_seconds=counted.kernel_seconds,
        blocks=recorded.blocks,
    )


ROUNDS = 12
TIMED_STEPS = 5

HOW_ON_CPU = (
    "the share of samples of the step's thread that were in the host's code, not in a kernel; no profiler"
)
HOW_ON_CUDA = (
    "1 − the time in which a kernel ran, by the device's clock, over the step's wall time without a profiler"
)


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a step's wall time in which no kernel ran: `sampled` on a CPU, `measured` on CUDA."""

    fraction: Interval
    source: Literal["sampled", "measured"]
    how: str


def tax_by_samples(counts: SampleCounts) -> Tax | None:
    """On a CPU, where host and kernels share one timeline; None without a sample of either."""
    share = dispatch_share(counts)
    if share is None:
        return None
    return Tax(fraction=Interval(*share, counts.kernel + counts.host), source="sampled", how=HOW_ON_CPU)


def tax_by_kernels(kernel_seconds: float, wall: Interval) -> Tax:
    """On CUDA, where the device has its own clock. The bounds are those of the wall time, within 0 and 1."""

    def idle(whole: float) -> float:
        return 1.0 - min(max(kernel_seconds / whole, 0.0), 1.0) if whole > 0 else 0.0

    fraction = Interval(idle(wall.value), idle(wall.low), idle(wall.high), wall.samples)
    return Tax(fraction=fraction, source="measured", how=HOW_ON_CUDA)


STEPS = 9

OF_AUTOGRAD = frozenset({"detach", "detach_"})

Lane = Literal["host", "device"]

BlockKind = Literal["operator", "compiled", "launch", "runtime", "mark", "kernel", "copy"]


class TraceBlock(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the trace, `begin_us` after the step began. `depth` counts enclosing blocks of its lane.

    `row` is the host's thread or the device's stream. Device blocks are placed by the device's clock, later
    where the first of them would begin before its launch call.
    """

    name: str
    kind: BlockKind
    lane: Lane
    row: int
    depth: int
    begin_us: float
    duration_us: float


class StepBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The step of median length among those recorded, until its last block's end.

    The profiler lengthens a step, the more so the more blocks it has. Where kernels are unknown
    (`counted.unknown`) there are no device blocks.
    """

    blocks: list[TraceBlock]
    profiled_seconds: float
    counted: ProfiledStep


def record_step(bench: AnyBench, case: AnyCase) -> StepBlocks:
    attach_profiler(bench.device)
    events = record_steps(bench.device, case.call, LEAD_STEPS_UNDER_PROFILER + STEPS)
    return read_step(events, bench.device.type == "cuda", LEAD_STEPS_UNDER_PROFILER)


def read_step(events: list[Event], cuda: bool, skip: int = 0) -> StepBlocks:
    """The marked step of median length after `skip` others, one with known kernels if there are any."""
    complete = complete_events(events)
    marks = step_marks(events)
    work = match_work(complete, marks) if cuda else [StepWork([])] * len(marks)
    recorded = list(zip(marks, work, read_steps(events, cuda), strict=True))[skip:]
    known = [one for one in recorded if one[2].matched is not None] or recorded
    if not known:
        raise ValueError("no marked step in this trace")
    found = []
    for mark, own, step in known:
        blocks = _blocks(complete, mark, own.items if step.matched is not None else [])
        end_us = max(block.begin_us + block.duration_us for block in blocks)
        found.append(StepBlocks(blocks=blocks, profiled_seconds=end_us / 1e6, counted=step))
    found.sort(key=lambda step: step.profiled_seconds)
    return found[(len(found) - 1) // 2]


def _blocks(events: list[Event], mark: Event, work: list[tuple[Event | None, Event]]) -> list[TraceBlock]:
    begin = mark["ts"]
    on_host = [e for e in inside(events, mark) if e["tid"] == mark["tid"] or e.get("cat") in RUNTIME]
    host = sorted(on_host, key=lambda event: (event["ts"], -event["dur"], event is not mark))
    blocks = [_block(event, begin, "host", depth) for event, depth in _nested(host)]
    behind = clock_behind(work)
    return [*blocks, *(_block(item, begin - behind, "device", 0) for _, item in work)]


def _nested(events: list[Event]) -> Iterator[tuple[Event, int]]:
    ends: list[float] = []
    for event in events:
        while ends and event["ts"] >= ends[-1]:
            ends.pop()
        yield event, len(ends)
        ends.append(event["ts"] + event["dur"])


def _block(event: Event, begin: float, lane: Lane, depth: int) -> TraceBlock:
    row: Any = event["tid"] if lane == "host" else event["args"].get("stream", 0)
    return TraceBlock(
        name=event["name"],
        kind=_kind(event),
        lane=lane,
        row=int(row),
        depth=depth,
        begin_us=event["ts"] - begin,
        duration_us=event["dur"],
    )


def _kind(event: Event) -> BlockKind:
    category = event.get("cat")
    if category in DEVICE_WORK:
        return "kernel" if category == "kernel" else "copy"
    if category in RUNTIME:
        return "launch" if event["name"] in LAUNCH_CALLS else "runtime"
    if category == "cpu_op":
        # Compiled code marks itself in this category too, without a namespace, as does autograd for views.
        return "operator" if "::" in event["name"] or event["name"] in OF_AUTOGRAD else "compiled"
    return "mark"


TRACE_FILE = "timeline.trace.json.gz"

DEVICE_ROWS = 1000
"""Added to a stream's number, so that no stream has the row of a host thread."""


def write(finding: TimelineFinding, folder: Path) -> None:
    """Write the trace into `folder`, which is made. Raises StudyError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TRACE_FILE).write_bytes(gzip.compress(json.dumps(trace(finding)).encode()))
    except OSError as error:
        raise StudyError("invalid_request", f"cannot write to {folder}: {error.strerror}", "out") from error


def trace(finding: TimelineFinding) -> dict[str, Any]:
    events = [
        event for number, track in enumerate(finding.tracks, start=1) for event in _process(track, number)
    ]
    about = f"one {finding.phase} step, batch {finding.batch_bucket}, {finding.device}"
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"about": about}}


def _process(track: Track, number: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, f"{track.mode} ({track.effective})")
    for lane, row in sorted({(block.lane, block.row) for block in track.blocks}, reverse=True):
        name = "host" if lane == "host" else f"device, stream {row}"
        yield _named("thread_name", number, _row_number(lane, row), name)
    for block in track.blocks:
        yield {
            "ph": "X",
            "name": block.name,
            "cat": block.kind,
            "pid": number,
            "tid": _row_number(block.lane, block.row),
            "ts": block.begin_us,
            "dur": block.duration_us,
        }


def _row_number(lane: str, row: int) -> int:
    return row if lane == "host" else DEVICE_ROWS + row


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}
