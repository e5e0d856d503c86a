"""One step of a mode as a track: its blocks under the profiler, its time and its tax without one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from statistics import median, median_low
from time import perf_counter_ns
from typing import Any, Literal

import msgspec

from service.anatomy.common import Report, counted
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import SamplerError
from service.measure.rounds import in_rounds
from service.measure.step_costs import SAMPLED_SECONDS, sample_case
from service.records import Phase, SampleCounts
from service.statistics.boundedness import dispatch_share
from service.statistics.intervals import Interval
from service.step.buffers import LEAD_STEPS, LEAD_STEPS_UNDER_PROFILER
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


class TimelineFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One or two tracks, each from the begin of its own step, and the names of the files written.

    `speedup`: how many times as fast the second track's step is as the first's, without a profiler; the
    median of paired rounds, None for one track. `notes` say what else was at work in `wall`.
    """

    device: str
    batch_bucket: int
    phase: Phase
    tracks: list[Track]
    speedup: Interval | None = None
    files: list[str]
    notes: list[str] = []


def interval_text(interval: Interval, scale: float, unit: str) -> str:
    """The value and its finite bounds times `scale`, in whole numbers of `unit`."""
    value = f"{scale * interval.value:.0f}{unit}"
    if not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return value
    return f"{value} [{scale * interval.low:.0f}, {scale * interval.high:.0f}]"


def tax_text(track: Track) -> str:
    """The tax in percent, or a dash."""
    return "–" if track.tax is None else interval_text(track.tax.fraction, 100, " %")


def speedup_text(speedup: Interval) -> str:
    """A speed-up with its interval."""
    return f"{speedup.value:.2f} times as fast [{speedup.low:.2f}, {speedup.high:.2f}]"


def tax_source_text(finding: TimelineFinding) -> str:
    """How the tax was obtained, or why it is unknown; both where the tracks differ."""
    hows = dict.fromkeys(
        track.tax.how if track.tax is not None else f"not known: {track.no_tax}" for track in finding.tracks
    )
    return "; ".join(hows)


PARTS = 3
ROUNDS = 4

TIMED_STEPS = 5

HOW_ON_CPU = (
    "the share of samples of the step's thread that were in the host's code and in no kernel, without a "
    "profiler. The profiler's own nesting is not used: it adds to every operator that it records"
)
HOW_ON_CUDA = (
    "1 − the time in which a kernel ran, by the device's clock, over the step's wall time without a profiler"
)


class Tax(msgspec.Struct, frozen=True, kw_only=True):
    """Share of a step's wall time in which no kernel ran.

    `sampled`: by samples of the thread, on a CPU. `measured`: from the time in which any kernel ran. `how`
    explains that in a sentence.
    """

    fraction: Interval
    source: Literal["sampled", "measured"]
    how: str


@dataclass(slots=True)
class Timed:
    """A case, the wall seconds of its steps, and on a CPU its samples, or why there are none.

    `rounds` are the medians of each round's steps, which pair with another case's.
    """

    case: Case
    seconds: list[float] = field(default_factory=list)
    rounds: list[float] = field(default_factory=list)
    samples: SampleCounts = field(default_factory=SampleCounts)
    no_samples: str | None = None


def time_steps(bench: Bench, cases: list[Case], report: Report) -> list[Timed]:
    """Time whole steps without a profiler, in interleaved rounds.

    Samples are taken between parts of them, so that both see a machine that is slow for a while.
    """
    timed = {case.mode: Timed(case) for case in cases}
    variants = {case.mode: partial(_steps, bench, case) for case in cases}
    log = counted(report, PARTS * ROUNDS)
    for part in range(PARTS):
        blocks = in_rounds(variants, ROUNDS, f"timeline/{part}", log)
        for mode, one in timed.items():
            one.seconds.extend(seconds for block in blocks[mode] for seconds in block)
            one.rounds.extend(map(median, blocks[mode]))
            if bench.device.type == "cpu":
                _sample(bench, one)
    return list(timed.values())


def _sample(bench: Bench, timed: Timed) -> None:
    try:
        found = sample_case(bench, timed.case, SAMPLED_SECONDS / PARTS)
    except SamplerError as error:
        timed.no_samples = str(error)
        return
    if found is None:
        timed.no_samples = "no sample was in a kernel or in the host's code"
    else:
        timed.samples += found


def _steps(bench: Bench, case: Case) -> list[float]:
    for _ in range(LEAD_STEPS):
        case.call()
    return [_whole_seconds(bench, case) for _ in range(TIMED_STEPS)]


def _whole_seconds(bench: Bench, case: Case) -> float:
    """One step by the host's clock, until the device has finished."""
    if bench.device.type != "cuda":
        return case.call_seconds()
    bench.synchronise()
    began = perf_counter_ns()
    case.call()
    bench.synchronise()
    return (perf_counter_ns() - began) / 1e9


def tax_by_samples(counts: SampleCounts) -> Tax | None:
    """On a CPU, where host and kernels share one timeline; None without a sample of either."""
    share = dispatch_share(counts.kernel, counts.host, counts.unclassified)
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

    `row` is the host's thread or the device's stream; `launched_by` is the index of the host block whose call
    launched this device block, None on the host, and where that is not known. Device blocks are placed by the
    device's clock, later where the first of them would begin before its launch call.
    """

    name: str
    kind: BlockKind
    lane: Lane
    row: int
    depth: int
    begin_us: float
    duration_us: float
    launched_by: int | None = None


class StepBlocks(msgspec.Struct, frozen=True, kw_only=True):
    """The step of median length among those recorded; `profiled_seconds` lasts until its last block's end.

    The profiler lengthens a step, the more so the more blocks it has. `counted` are the sums of its trace.
    Where its kernels are unknown, with the reason in `counted.unknown`, there are no device blocks.
    """

    blocks: list[TraceBlock]
    profiled_seconds: float
    counted: ProfiledStep


def record_step(bench: Bench, case: Case) -> StepBlocks:
    """Profile a few steps of `case` and take the one of median length."""
    attach_profiler(bench.device)
    events = record_steps(bench.device, case.call, LEAD_STEPS_UNDER_PROFILER + STEPS)
    return read_step(events, bench.device.type == "cuda", LEAD_STEPS_UNDER_PROFILER)


def read_step(events: list[Event], cuda: bool, skip: int = 0) -> StepBlocks:
    """The marked step of median length, after `skip` others, of those with known kernels if there are any.

    Raises ValueError where there is no step.
    """
    complete = complete_events(events)
    marks = step_marks(events)
    work = match_work(complete, marks) if cuda else [StepWork([])] * len(marks)
    recorded = list(zip(marks, work, read_steps(events, cuda), strict=True))[skip:]
    known = [one for one in recorded if one[2].matched is not None] or recorded
    if not known:
        raise ValueError("no marked step in this trace")
    found = [
        (_blocks(complete, mark, own.items if step.matched is not None else []), step)
        for mark, own, step in known
    ]
    ends = [max(_end(block) for block in blocks) for blocks, _ in found]
    middle = ends.index(median_low(ends))
    blocks, step = found[middle]
    return StepBlocks(blocks=blocks, profiled_seconds=ends[middle] / 1e6, counted=step)


def outermost(blocks: Iterable[TraceBlock], kinds: set[BlockKind]) -> Iterator[TraceBlock]:
    """Blocks of `kinds` that lie in no other block of `kinds` on their row."""
    until: dict[tuple[Lane, int], float] = {}
    for block in blocks:
        row = block.lane, block.row
        if block.kind in kinds and block.begin_us >= until.get(row, -1.0):
            until[row] = _end(block)
            yield block


def _blocks(events: list[Event], mark: Event, work: list[tuple[Event | None, Event]]) -> list[TraceBlock]:
    begin = mark["ts"]
    on_host = [e for e in inside(events, mark) if e["tid"] == mark["tid"] or e.get("cat") in RUNTIME]
    host = sorted(on_host, key=lambda event: (event["ts"], -event["dur"], event is not mark))
    blocks = [_block(event, begin, "host", depth) for event, depth in _nested(host)]
    indices = {id(event): index for index, event in enumerate(host)}
    behind = clock_behind(work)
    for call, item in work:
        launched_by = None if call is None else indices[id(call)]
        block = _block(item, begin - behind, "device", 0)
        blocks.append(msgspec.structs.replace(block, launched_by=launched_by))
    return blocks


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


def _end(block: TraceBlock) -> float:
    return block.begin_us + block.duration_us
