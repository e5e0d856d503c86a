"""What CUDA's caching allocator says of itself, each statistic with its definition and its source."""

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
"""The id under which the allocator keeps what belongs to no private pool."""

_STATS = "torch.cuda.memory_stats"
SIZES: dict[str, str] = {
    "allocated": "in blocks that living tensors have, rounded up to the allocator's block sizes",
    "active": "allocated, and in blocks that were freed while a stream had still to pass their last use",
    "reserved": "in segments taken from the device, whoever uses them now; what other programs cannot have",
    "inactive_split": "in free blocks that are a part of a segment with other parts in use: not releasable",
}
EVENTS: dict[str, str] = {
    "alloc_retries": "times that the device had no memory left and cached segments were given back first",
    "ooms": "times that an allocation failed for good",
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

    `fragmentation` is a formula of our own over two numbers of `torch.cuda.memory_stats`, which has none.
    """
    found = [
        Statistic(
            name=name,
            unit="bytes",
            value=stats[f"{name}_current"],
            peak=stats[f"{name}_peak"],
            definition=f"bytes {words}",
            source=f"{_STATS}: {name}_bytes.all",
        )
        for name, words in SIZES.items()
    ]
    found.append(
        Statistic(
            name="fragmentation",
            unit="share",
            value=_fragmentation(stats, "current"),
            peak=_fragmentation(stats, "peak"),
            definition="1 − active / reserved: the share of the reserve that no work has; its peak column "
            "is of both peaks",
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
            definition=words,
            source=f"{_STATS}: num_{name}",
        )
        for name, words in EVENTS.items()
    ]


def pool_bytes(segments: list[dict[str, Any]]) -> int:
    """Reserved bytes of a snapshot's segments that lie in private pools."""
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) != NO_POOL)


class Snapshot:
    """Within: CUDA's allocator notes each allocation with its stack; then writes them into `folder`.

    The file is for pytorch.org/memory_viz. Raises StudyError where it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / SNAPSHOT_FILE

    def __enter__(self) -> Snapshot:
        """Begin to note."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            message = f"cannot write to {self.file.parent}: {error.strerror}"
            raise StudyError("invalid_request", message, "out") from error
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES_KEPT)
        return self

    def __exit__(self, *_: object) -> None:
        """Write and stop noting."""
        try:
            torch.cuda.memory._dump_snapshot(str(self.file))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


def _fragmentation(stats: dict[str, int], moment: str) -> float:
    reserved = stats[f"reserved_{moment}"]
    return 1 - stats[f"active_{moment}"] / reserved if reserved else 0.0
