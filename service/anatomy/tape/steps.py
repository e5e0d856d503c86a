"""What one step of a mode saves on the tape, and its peak of allocated memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import torch

from service.anatomy.tape.graph import hooked
from service.anatomy.tape.storages import Held, Storages, held, owned_by
from service.measure.cases import Bench, Case
from service.protocol.modes import MODES
from service.step.profiler_session import new_session
from service.step.profiling import chrome_events

MEMORY_EVENT = "[memory]"
CPU_DEVICE_TYPE = 0


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that one step got from torch's allocator: the peak above its start, and the sum.

    CPU: from the profiler's memory events; scratch that kernels allocate otherwise is not in it. CUDA: the
    allocator's peak; a replayed graph allocates nothing, its pool was allocated at capture. `allocations` and
    `allocated_bytes` are None on CUDA.
    """

    peak_bytes: int
    allocations: int | None
    allocated_bytes: int | None


class TapeOfStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a mode: the tensors that autograd saved, by saved-tensor hooks, and its allocations."""

    mode: str
    effective: str
    held: Held
    step: Peak


def tape_of_step(bench: Bench, case: Case) -> TapeOfStep:
    """Run two steps of `case`: one with saved-tensor hooks, one that records allocations."""
    saved = hooked(case.call, Storages(owned_by(bench, case.buffers)))
    effective = MODES[case.mode].effect(bench.device.type).name
    return TapeOfStep(mode=case.mode, effective=effective, held=held(saved), step=peak_of(bench, case))


def peak_of(bench: Bench, case: Case) -> Peak:
    """The peak of memory of one step, its results included."""
    if bench.device.type == "cuda":
        return _peak_on_cuda(case)
    with new_session(bench.device, memory=True) as session:
        result = case.call()
    events = chrome_events(session)
    del result
    return peak_of_events(events)


def peak_of_events(events: Iterable[dict[str, Any]]) -> Peak:
    """The peak of the running sum of the profiler's memory events on the host, in order of time."""
    changes = [
        event["args"]["Bytes"]
        for event in sorted(events, key=lambda event: event.get("ts", 0.0))
        if event["name"] == MEMORY_EVENT and event["args"]["Device Type"] == CPU_DEVICE_TYPE
    ]
    now = 0
    most = 0
    for change in changes:
        now += change
        most = max(most, now)
    taken = [change for change in changes if change > 0]
    return Peak(peak_bytes=most, allocations=len(taken), allocated_bytes=sum(taken))


def _peak_on_cuda(case: Case) -> Peak:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = case.call()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    del result
    return Peak(peak_bytes=most, allocations=None, allocated_bytes=None)
