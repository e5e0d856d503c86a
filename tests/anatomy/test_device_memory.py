"""The fragmentation probe's request, on a simulated allocator that serves others as well."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from service.anatomy.probes import memory as device_memory
from service.anatomy.probes.memory import BLOCK_BYTES, BLOCKS, _Request
from tests.support.fake_allocator import FakeAllocator

CUDA = torch.device("cuda")
HALF = BLOCKS // 2 * BLOCK_BYTES
WHOLE, PIECES = slice(BLOCKS // 2), slice(None, None, 2)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> FakeAllocator:
    fake = FakeAllocator()
    monkeypatch.setattr(
        device_memory, "torch", SimpleNamespace(empty=fake.empty, cuda=fake, uint8=torch.uint8)
    )
    return fake


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        # As on an H100: what was left of weights' segments served one of the blocks.
        [BLOCK_BYTES],
        [BLOCK_BYTES + (1 << 20), 3 * BLOCK_BYTES, BLOCK_BYTES // 2],
        [HALF, HALF - BLOCK_BYTES],
        [5 * HALF, 2 * HALF, HALF + (1 << 20)],
    ],
)
def test_only_free_memory_in_pieces_asks_the_device_whatever_others_left(
    allocator: FakeAllocator, sizes: list[int]
) -> None:
    kept = [allocator.used_segment(BLOCK_BYTES // 8, size) for size in sizes]
    before = allocator.memory_stats(CUDA)["inactive_split_bytes.all.current"]
    for _ in range(2):
        assert _Request(CUDA, WHOLE).counted()[0] == 0
        assert _Request(CUDA, PIECES).counted()[0] == 1
    assert allocator.memory_stats(CUDA)["inactive_split_bytes.all.current"] == before
    assert sum(not piece.free for piece in allocator.pieces) == len(kept)


def test_half_of_the_segment_is_free_in_one_piece_or_in_every_other_block(allocator: FakeAllocator) -> None:
    for freed, sizes in ((WHOLE, [HALF]), (PIECES, [BLOCK_BYTES] * (BLOCKS // 2))):
        request = _Request(CUDA, freed)
        request.prepare()
        assert [piece.size for piece in allocator.pieces if piece.free] == sizes
        request.release()
        assert allocator.pieces == []
