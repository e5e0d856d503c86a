"""One profiled step as blocks on the host and on the device, from the events of torch's profiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import median_low
from typing import Any, Literal

import msgspec

from service.measure.cases import Bench, Case
from service.step.kernel_matching import StepWork, match_work
from service.step.profiling import attach_profiler, record_steps
from service.step.step_reading import read_steps
from service.step.trace import (
    DEVICE_WORK,
    LAUNCH_CALLS,
    RUNTIME,
    Event,
    ProfiledStep,
    clock_behind,
    complete_events,
    inside,
    step_marks,
)
from service.step.untimed import LEAD_STEPS_UNDER_PROFILER

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
    places = {id(event): place for place, event in enumerate(host)}
    behind = clock_behind(work)
    for call, item in work:
        launched_by = None if call is None else places[id(call)]
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
