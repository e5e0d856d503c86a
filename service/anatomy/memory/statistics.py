"""Statistics of CUDA's caching allocator, each with its definition and its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import torch

from service.anatomy.errors import StudyError

Unit = Literal["bytes", "share", "count"]

SNAPSHOT_FILE = "memory.snapshot.pickle"
ENTRIES_KEPT = 100_000
"""Newest allocations and releases in a snapshot; each takes some kilobytes there."""

NO_POOL = (0, 0)
"""The pool id of segments in no private pool."""

_STATS = "torch.cuda.memory_stats"
SIZES: dict[str, str] = {
    "allocated": "in blocks of live tensors, rounded up to the allocator's block sizes",
    "active": "allocated, and in freed blocks that a stream may still use",
    "reserved": "in segments allocated from the device, in use or cached; other programs cannot have them",
    "inactive_split": "in free blocks of segments that are partly in use: not releasable",
}
EVENTS: dict[str, str] = {
    "alloc_retries": "allocations that had to free cached segments first, because the device was full",
    "ooms": "allocations that failed",
}


class Statistic(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic now and at its peak since the process began, None where it has no peak."""

    name: str
    unit: Unit
    value: float
    peak: float | None
    definition: str
    source: str


def statistics(stats: dict[str, int], graph_pool_bytes: int) -> list[Statistic]:
    """From `service.step.device.memory` and the size of private pools.

    `fragmentation` is computed here from two of them; `torch.cuda.memory_stats` has no such statistic.
    """
    found = [
        Statistic(
            name=name,
            unit="bytes",
            value=stats[f"{name}_current"],
            peak=stats[f"{name}_peak"],
            definition=f"bytes {text}",
            source=f"{_STATS}: {name}_bytes.all",
        )
        for name, text in SIZES.items()
    ]
    found.append(
        Statistic(
            name="fragmentation",
            unit="share",
            value=_fragmentation(stats, "current"),
            peak=_fragmentation(stats, "peak"),
            definition="1 − active / reserved: the share of reserved memory that is not active; the peak "
            "column is of both peaks",
            source=f"our own, from {_STATS}: active_bytes.all and reserved_bytes.all",
        )
    )
    found.append(
        Statistic(
            name="graph_pool",
            unit="bytes",
            value=graph_pool_bytes,
            peak=None,
            definition="bytes of segments in private pools, which CUDA graphs keep for their replays",
            source="torch.cuda.memory_snapshot: total_size of segments whose segment_pool_id is not (0, 0)",
        )
    )
    return found + [
        Statistic(
            name=name,
            unit="count",
            value=stats[name],
            peak=None,
            definition=text,
            source=f"{_STATS}: num_{name}",
        )
        for name, text in EVENTS.items()
    ]


def pool_bytes(segments: list[dict[str, Any]]) -> int:
    """Reserved bytes of a snapshot's segments that lie in private pools."""
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != NO_POOL)


class Snapshot:
    """A context in which CUDA's allocator records each allocation with its stack; writes `file` at its end.

    The file is for pytorch.org/memory_viz. Raises StudyError where the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / SNAPSHOT_FILE

    def __enter__(self) -> Snapshot:
        """Make the folder and start recording."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot write to {self.file.parent}: {error.strerror}"
            raise StudyError("invalid_request", message, "out") from error
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES_KEPT)
        return self

    def __exit__(self, *_: object) -> None:
        """Write the snapshot and stop recording."""
        try:
            torch.cuda.memory._dump_snapshot(str(self.file))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


def _fragmentation(stats: dict[str, int], moment: str) -> float:
    reserved = stats[f"reserved_{moment}"]
    return 1 - stats[f"active_{moment}"] / reserved if reserved else 0.0
