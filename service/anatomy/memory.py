"""Study of memory: what serving always holds, what a step of each mode allocates, allocator statistics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from service.anatomy.common import (
    Report,
    StudyError,
    resolve_bucket,
    resolve_case,
    resolve_modes,
    resolve_phase,
)
from service.anatomy.tape import OwnerKind, TapeOfStep, distinct_bytes, owned_by, tape_of_step
from service.measure.cases import AnyBench
from service.records import Phase
from service.step.device import memory


class MemoryArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`mode` None is every configured one, `phase` None the main one; `out` a folder for CUDA's snapshot."""

    mode: str | None = None
    batch_size: int = 1
    phase: Phase | None = None
    out: str | None = None


class StaticMemory(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bytes: int
    what: str


class MemoryFinding(msgspec.Struct, frozen=True, kw_only=True):
    """`allocator` is None on a CPU."""

    device: str
    batch_bucket: int
    phase: Phase
    parts: list[StaticMemory]
    steps: list[TapeOfStep]
    files: list[str]
    allocator: list[Statistic] | None


def read_memory(bench: AnyBench, arguments: MemoryArguments, report: Report) -> MemoryFinding:
    """Run a step of each mode and read the statistics. Raises StudyError for arguments that cannot work."""
    on_cuda = bench.device.type == "cuda"
    if arguments.out is not None and not on_cuda:
        message = "a snapshot is of CUDA's allocator, and this is a CPU: leave out `out`"
        raise StudyError("unsupported_here", message, "out")
    bucket = resolve_bucket(bench, arguments.batch_size)
    phase = resolve_phase(bench, arguments.phase)
    modes = resolve_modes(bench, arguments.mode)
    cases = [resolve_case(bench, mode, bucket, phase, report) for mode in modes]
    report("one step of each mode")
    with nullcontext() if arguments.out is None else snapshot(Path(arguments.out)):
        steps = [tape_of_step(bench, case) for case in cases]
    allocator = None
    if on_cuda:
        allocator = statistics(memory(bench.device) or {}, pool_bytes(torch.cuda.memory_snapshot()))
    return MemoryFinding(
        device=bench.device.type,
        batch_bucket=bucket,
        phase=phase,
        parts=static_memory(bench, bucket),
        steps=steps,
        files=[] if arguments.out is None else [SNAPSHOT_FILE],
        allocator=allocator,
    )


def static_memory(bench: AnyBench, bucket: int) -> list[StaticMemory]:
    """What is held whether a step runs or not. All buckets share the cache of the largest."""
    held: dict[OwnerKind, tuple[str, str]] = {
        "parameter": ("parameters", "the weights, each storage once"),
        "buffer": ("buffers", "the model's constant tables"),
        "cache": ("cache", f"keys and values, {max(bench.inputs)} rows"),
        "input": ("inputs", f"static inputs of batch {bucket}"),
    }
    tensors: dict[OwnerKind, list[Tensor]] = {kind: [] for kind in held}
    for kind, _, tensor in owned_by(bench, bench.inputs[bucket]):
        tensors[kind].append(tensor)
    return [
        StaticMemory(name=name, bytes=distinct_bytes(tensors[kind]), what=what)
        for kind, (name, what) in held.items()
        if tensors[kind] or kind != "cache"
    ]


SNAPSHOT_FILE = "memory.snapshot.pickle"
ENTRIES_KEPT = 100_000
"""Newest allocations and releases in a snapshot; each takes some kilobytes there."""

NO_POOL = (0, 0)
"""The pool id of segments in no private pool."""

SIZES = ("allocated", "active", "reserved", "inactive_split")


class Statistic(msgspec.Struct, frozen=True):
    """One of `torch.cuda.memory_stats`, now and at its peak since the process began (None: it has none).

    `fragmentation` is 1 − active / reserved, `graph_pool` what CUDA graphs keep for their replays.
    """

    name: str
    unit: Literal["bytes", "share", "count"]
    value: float
    peak: float | None


def statistics(stats: dict[str, int], graph_pool_bytes: int) -> list[Statistic]:
    """From `service.step.device.memory` and the size of private pools; fragmentation is computed here."""
    fragmentation = [_fragmentation(stats, moment) for moment in ("current", "peak")]
    values: dict[str, tuple[Literal["bytes", "share", "count"], float, float | None]] = {
        **{name: ("bytes", stats[f"{name}_current"], stats[f"{name}_peak"]) for name in SIZES},
        "fragmentation": ("share", fragmentation[0], fragmentation[1]),
        "graph_pool": ("bytes", graph_pool_bytes, None),
        **{name: ("count", stats[name], None) for name in ("alloc_retries", "ooms")},
    }
    return [Statistic(name, *found) for name, found in values.items()]


def pool_bytes(segments: list[dict[str, Any]]) -> int:
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != NO_POOL)


@contextmanager
def snapshot(folder: Path) -> Iterator[None]:
    """A context in which CUDA's allocator records each allocation with its stack; then writes SNAPSHOT_FILE.

    The file is for pytorch.org/memory_viz. Raises StudyError where the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"cannot write to {folder}: {error.strerror}"
        raise StudyError("invalid_request", message, "out") from error
    torch.cuda.memory._record_memory_history(max_entries=ENTRIES_KEPT)
    try:
        yield
    finally:
        try:
            torch.cuda.memory._dump_snapshot(str(folder / SNAPSHOT_FILE))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


def _fragmentation(stats: dict[str, int], moment: str) -> float:
    reserved = stats[f"reserved_{moment}"]
    return 1 - stats[f"active_{moment}"] / reserved if reserved else 0.0
