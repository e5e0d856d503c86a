"""A caching allocator of device memory as torch's: best fit, segments that are cut, and joined again."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

LARGE_SEGMENT = 20 << 20
"""Bytes of a segment that is made for a request of 1 to 10 MiB; larger ones have segments of their size."""


@dataclass(order=True)
class Piece:
    """Part of a segment, from `begin`."""

    size: int
    begin: int
    segment: int = field(compare=False)
    free: bool = field(default=True, compare=False)


class Block:
    """Memory in use: it is free again when the last reference to it is gone."""

    def __init__(self, allocator: FakeAllocator, piece: Piece) -> None:
        self._allocator, self._piece = allocator, piece

    def data_ptr(self) -> int:
        return self._piece.begin

    def __del__(self) -> None:
        self._allocator.give_back(self._piece)


@dataclass
class FakeAllocator:
    """The part of `torch.cuda` that hands out memory; `empty` takes the place of `torch.empty`."""

    pieces: list[Piece] = field(default_factory=list)
    made: int = 0
    _end: int = 1 << 40

    def empty(self, size: int, *, dtype: torch.dtype, device: object) -> Block:
        assert dtype is torch.uint8
        assert device == torch.device("cuda")
        piece = min((piece for piece in self.pieces if piece.free and piece.size >= size), default=None)
        return self._cut(piece or self._segment(LARGE_SEGMENT if size < LARGE_SEGMENT // 2 else size), size)

    def used_segment(self, used: int, free: int) -> Block:
        """The first `used` bytes of a new segment, with `free` ones behind them."""
        return self._cut(self._segment(used + free), used)

    def give_back(self, piece: Piece) -> None:
        piece.free = True
        self.pieces.sort(key=lambda one: one.begin)
        for first, second in zip(self.pieces[:-1], self.pieces[1:], strict=True):
            if first.free and second.free and first.segment == second.segment:
                # The second takes up the first, so that runs of free pieces end as one.
                second.begin, second.size = first.begin, first.size + second.size
                self.pieces = [one for one in self.pieces if one is not first]

    def empty_cache(self) -> None:
        """Free segments go back to the device."""
        used = {piece.segment for piece in self.pieces if not piece.free}
        self.pieces = [piece for piece in self.pieces if piece.segment in used]

    def memory_stats(self, device: object) -> dict[str, int]:
        assert device == torch.device("cuda")
        parts = [piece.segment for piece in self.pieces]
        inactive = [piece.size for piece in self.pieces if piece.free and parts.count(piece.segment) > 1]
        return {"num_device_alloc": self.made, "inactive_split_bytes.all.current": sum(inactive)}

    def _cut(self, piece: Piece, size: int) -> Block:
        if piece.size - size > 1 << 20:
            self.pieces.append(Piece(piece.size - size, piece.begin + size, piece.segment))
            piece.size = size
        piece.free = False
        return Block(self, piece)

    def _segment(self, size: int) -> Piece:
        self.made += 1
        piece = Piece(size, self._end, self._end)
        self.pieces.append(piece)
        self._end += size + (1 << 20)
        return piece
