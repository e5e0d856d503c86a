"""Probes of a CUDA device's memory: free memory in pieces, and copies from memory that is not pinned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from service.anatomy.errors import StudyError
from service.anatomy.probes.blame import line_of, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep, median_of
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report
from service.step.profiling import attach_profiler, record_steps
from service.step.trace import DEVICE_WORK, complete_events

BLOCK_BYTES = 16 << 20
BLOCKS = 16
"""A block is larger than what the allocator serves from segments that it shares out among small requests."""

COPIED_BYTES = 64 << 20
PAGEABLE = "Pageable"
"""Kineto names a copy by the kinds of both memories: `Memcpy HtoD (Pageable -> Device)`."""


@dataclass(slots=True)
class _Request:
    """A request for half of a segment that is cut into blocks, of which half are free: those in `freed`."""

    device: torch.device
    freed: slice
    held: list[Tensor] = field(default_factory=list)

    def prepare(self) -> None:
        """Cut one segment into blocks, and free half of them."""
        torch.cuda.empty_cache()
        self._take_what_would_serve_the_request()
        segment = self._allocate(BLOCKS)
        begin = segment.data_ptr()
        del segment  # stays with the allocator, which cuts the blocks from it
        blocks: list[Tensor] = []
        while len(blocks) < BLOCKS:
            block = self._allocate(1)
            # The allocator takes the smallest free piece that is large enough: at first those of others.
            inside = begin <= block.data_ptr() < begin + BLOCKS * BLOCK_BYTES
            (blocks if inside else self.held).append(block)
        del blocks[self.freed]
        self.held += blocks

    def call(self) -> Tensor:
        """As many bytes as are free."""
        return self._allocate(BLOCKS // 2)

    def release(self) -> None:
        """Give all of it back to the device."""
        self.held.clear()
        torch.cuda.empty_cache()

    def _allocate(self, blocks: int) -> Tensor:
        return torch.empty(blocks * BLOCK_BYTES, dtype=torch.uint8, device=self.device)

    def _take_what_would_serve_the_request(self) -> None:
        """Hold the free pieces of others' segments that are as large as the request."""
        made = self._made()
        piece = self.call()
        while self._made() == made:
            self.held.append(piece)
            piece = self.call()
        del piece
        torch.cuda.empty_cache()

    def _made(self) -> int:
        return int(torch.cuda.memory_stats(self.device)["num_device_alloc"])

    @property
    def step(self) -> TimedStep:
        """The request alone is timed; its first call is the one that counts."""
        return TimedStep(self.call, prepare=self.prepare, after=self.release, warm_passes=0)

    def counted(self) -> tuple[int, int]:
        """Allocations from the device in one request, and the free bytes in cut segments before it."""
        self.prepare()
        try:
            free = torch.cuda.memory_stats(self.device)["inactive_split_bytes.all.current"]
            before = self._made()
            served = self.call()
            allocations = self._made() - before
            del served
        finally:
            self.release()
        return allocations, int(free)


def fragmentation(probed: ProbedModel, report: Report) -> FaultComparison:
    """A request for as many bytes as are free: in one piece, or in every other block."""
    device = probed.bench.device
    needed = 2 * BLOCKS * BLOCK_BYTES
    if torch.cuda.mem_get_info(device)[0] < needed:
        message = f"this probe needs {needed >> 20} MiB of free device memory: end what else uses the device"
        raise StudyError("unsupported_here", message)
    whole, pieces = _Request(device, slice(BLOCKS // 2)), _Request(device, slice(None, None, 2))
    report("counting allocations from the device")
    before, free_in_whole = whole.counted()
    after, free_in_pieces = pieces.counted()
    pieces.prepare()
    blame = line_of("aten::empty.memory_format", records(probed, pieces.call))
    pieces.release()
    return FaultComparison(
        without=whole.step,
        with_fault=pieces.step,
        subject=f"one request for {BLOCKS // 2 * BLOCK_BYTES >> 20} MiB, of which as many are free",
        counter=Counter(name="device_allocations_per_request", before=before, after=after),
        blame=blame,
        notes=[
            f"Free in cut segments (`inactive_split_bytes`): {free_in_whole:,} bytes in one piece and "
            f"{free_in_pieces:,} in blocks of {BLOCK_BYTES >> 20} MiB.",
        ],
    )


def pinned_copy(probed: ProbedModel, report: Report) -> FaultComparison:
    """A copy to the device with `non_blocking=True`, from pinned and from pageable memory."""
    device, wait = probed.bench.device, probed.bench.synchronise
    target = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    pageable = torch.ones(COPIED_BYTES, dtype=torch.uint8)
    without, with_fault = _copying(target, pageable.pin_memory()), _copying(target, pageable)
    report("counting copies from pageable memory")
    returned = [
        median_of(TimedStep(call, prepare=wait, after=wait, warm_passes=0), _no_wait)
        for call in (without, with_fault)
    ]
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        subject=f"one copy of {COPIED_BYTES >> 20} MiB to the device, until it has arrived",
        counter=Counter(
            name="pageable_copies_per_call",
            before=_pageable_copies(device, without),
            after=_pageable_copies(device, with_fault),
        ),
        blame=line_of("aten::copy_", records(probed, with_fault)),
        notes=[
            f"The call returned after {returned[0]} from pinned memory, and after {returned[1]} from "
            "pageable memory: so long the host could issue nothing else.",
        ],
    )


def _copying(target: Tensor, source: Tensor) -> Callable[[], Tensor]:
    def copy() -> Tensor:
        return target.copy_(source, non_blocking=True)

    return copy


def _pageable_copies(device: torch.device, run: Callable[[], Tensor]) -> int:
    """Copies from pageable memory in one call. Raises StudyError where the profiler saw no copy at all."""
    attach_profiler(device)
    events = complete_events(record_steps(device, run, 1))
    copied = [event["name"] for event in events if event.get("cat") in DEVICE_WORK - {"kernel"}]
    if not copied:
        message = "the profiler saw no copy: is CUPTI allowed here? `make gpu-check` looks into it"
        raise StudyError("unsupported_here", message)
    return sum(PAGEABLE in name for name in copied)


def _no_wait() -> None:
    """In the place of a wait for the device: the time until the call returns."""
