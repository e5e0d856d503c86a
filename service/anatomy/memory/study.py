"""Study of memory: what serving always holds, what a mode's step allocates, and allocator statistics."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import msgspec
import torch
from msgspec import UNSET, UnsetType

from service.anatomy.errors import StudyError
from service.anatomy.memory.resident import ProcessMemory, growth, process_now, why_not
from service.anatomy.memory.statistics import Snapshot, Statistic, pool_bytes, statistics
from service.anatomy.progress import Report
from service.anatomy.resolve import resolve_bucket, resolve_case, resolve_modes
from service.anatomy.tape.steps import Peak, TapeOfStep, tape_of_step
from service.anatomy.tape.storages import Held, distinct_bytes
from service.measure.cases import Bench, Case
from service.protocol.messages import Phase
from service.statistics.intervals import Interval
from service.step.buffers import Buffers
from service.step.device import memory


class MemoryArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode` None is every configured one; `out` a folder for a snapshot, on CUDA only."""

    mode: str | None = None
    batch_size: int = 1
    phase: Phase = "decode"
    out: str | None = None


class StaticMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Memory that serving always holds, each storage counted once."""

    name: str
    bytes: int
    what: str


class MemoryOfStep(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one step: its tape, its peak in torch's allocator, and the bytes that the process grew by.

    `resident` exists on a CPU only, and is None where it cannot be measured.
    """

    mode: str
    effective: str
    tape: Held
    step: Peak
    resident: Interval | UnsetType | None = UNSET


class MemoryFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`allocator` exists on CUDA only; `process` and `no_resident`, why growth is unknown, on a CPU only.

    `files` are the names of those written.
    """

    device: str
    batch_bucket: int
    phase: Phase
    parts: list[StaticMemory]
    steps: list[MemoryOfStep]
    files: list[str]
    allocator: list[Statistic] | UnsetType = UNSET
    process: ProcessMemory | UnsetType = UNSET
    no_resident: str | UnsetType | None = UNSET


def read_memory(bench: Bench, arguments: MemoryArguments, report: Report) -> MemoryFinding:
    """Run a step of each mode and read the statistics. Raises StudyError for arguments that cannot work."""
    on_cuda = bench.device.type == "cuda"
    if arguments.out is not None and not on_cuda:
        message = "a snapshot is of CUDA's allocator, and this is a CPU: leave out `out`"
        raise StudyError("unsupported_here", message, "out")
    bucket = resolve_bucket(bench, arguments.batch_size)
    modes = resolve_modes(bench, arguments.mode)
    cases = [resolve_case(bench, mode, bucket, arguments.phase, report) for mode in modes]
    snapshot = Snapshot(Path(arguments.out)) if arguments.out is not None else None
    with snapshot or nullcontext():
        report("one step of each mode")
        taped = [tape_of_step(bench, case) for case in cases]
    finding = MemoryFinding(
        device=bench.device.type,
        batch_bucket=bucket,
        phase=arguments.phase,
        parts=static_memory(bench, bench.buffers[bucket]),
        steps=[_step(one) for one in taped],
        files=[snapshot.file.name] if snapshot is not None else [],
    )
    return _on_cuda(bench, finding) if on_cuda else _on_cpu(finding, cases, report)


def static_memory(bench: Bench, buffers: Buffers) -> list[StaticMemory]:
    """What is held whether a step runs or not. All buckets share the cache of the largest."""
    model = bench.model
    bucket = buffers.bucket
    inputs = [*buffers.chunks.values(), buffers.token, buffers.positions, buffers.last, buffers.one]
    return [
        StaticMemory(
            name="parameters",
            bytes=distinct_bytes(model.parameters()),
            what="the weights, each storage once",
        ),
        StaticMemory(
            name="buffers", bytes=distinct_bytes(model.buffers()), what="the model's constant tables"
        ),
        StaticMemory(
            name="cache",
            bytes=distinct_bytes(tensor for layer in buffers.cache for tensor in layer),
            what=f"keys and values, {max(bench.buffers)} rows",
        ),
        StaticMemory(name="inputs", bytes=distinct_bytes(inputs), what=f"static inputs of batch {bucket}"),
    ]


def _step(taped: TapeOfStep) -> MemoryOfStep:
    return MemoryOfStep(mode=taped.mode, effective=taped.effective, tape=taped.held, step=taped.step)


def _on_cuda(bench: Bench, finding: MemoryFinding) -> MemoryFinding:
    found = statistics(memory(bench.device) or {}, pool_bytes(torch.cuda.memory_snapshot()))
    return msgspec.structs.replace(finding, allocator=found)


def _on_cpu(finding: MemoryFinding, cases: list[Case], report: Report) -> MemoryFinding:
    missing = why_not()
    steps = []
    report("resident size of steps")
    for step, case in zip(finding.steps, cases, strict=True):
        resident = growth(case.call) if missing is None else None
        steps.append(msgspec.structs.replace(step, resident=resident))
    return msgspec.structs.replace(finding, steps=steps, process=process_now(), no_resident=missing)
