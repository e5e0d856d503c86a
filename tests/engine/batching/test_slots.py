"""Rows of the cache: taken ones lie at its beginning, and whoever moves keeps its token and position."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from service.engine.batching.slots import Slots
from service.step.buffers import copy_row

BUCKETS = [1, 4, 16]


class Rows:
    """Slots over rows that hold what was written into them."""

    def __init__(self) -> None:
        self.content: dict[int, int] = {}
        self.moves = 0
        self.slots = Slots(BUCKETS, self.move)

    def move(self, row: int, to: int, positions: int) -> None:
        self.moves += 1
        assert positions == self.slots.positions[row]
        self.content[to] = self.content.pop(row)


@given(st.lists(st.one_of(st.integers(1, 16), st.integers(-16, -1)), max_size=40))
def test_everybody_keeps_its_rows_whoever_comes_and_goes(events: list[int]) -> None:
    rows, held = Rows(), dict[int, list[int]]()
    for number, event in enumerate(events):
        if event < 0 and held:
            slots = held.pop(list(held)[event % len(held)])
            rows.slots.release(slots)
            for row in slots:
                del rows.content[row]
        elif 0 < event <= rows.slots.room():
            rows.slots.clear(rows.slots.bucket(event))
            held[number] = slots = list(range(event))
            rows.slots.take(slots, [number] * event)
            for index, row in enumerate(slots):
                rows.content[row] = 100 * number + index
            rows.slots.feed(slots, [rows.content.get(row, -1) for row in range(16)])
        taken = [row for slots in held.values() for row in slots]
        assert len(set(taken)) == len(taken) == rows.slots.taken
        if taken:
            bucket = rows.slots.compact()
            assert bucket == next(size for size in BUCKETS if size >= len(taken))
            assert max(row for slots in held.values() for row in slots) < bucket
        for owner, slots in held.items():
            for index, row in enumerate(slots):
                assert rows.content[row] == rows.slots.tokens[row] == 100 * owner + index
                assert rows.slots.positions[row] == owner
        free = set(range(16)) - {row for slots in held.values() for row in slots}
        assert all(rows.slots.tokens[row] == rows.slots.positions[row] == 0 for row in free)


@pytest.mark.parametrize(("taken", "room"), [(0, 16), (1, 4), (12, 4), (13, 1), (15, 1), (16, 0)])
def test_what_may_join_is_the_largest_bucket_that_is_free(taken: int, room: int) -> None:
    slots = Rows().slots
    if taken:
        slots.take(list(range(taken)), [1] * taken)
    assert slots.room() == room


def test_nobody_moves_while_all_rows_lie_where_they_should() -> None:
    rows = Rows()
    rows.slots.take([0, 1, 2], [5, 5, 5])
    assert rows.slots.compact() == 4
    rows.slots.advance([11, 12, 13, 14])
    assert rows.slots.positions[:4] == [6, 6, 6, 0]
    assert rows.slots.tokens[:4] == [11, 12, 13, 0]
    assert rows.slots.used == 7
    assert rows.moves == 0


def test_a_row_is_copied_in_every_layer_up_to_its_position() -> None:
    cache = tuple((torch.rand(4, 8, 2, 3), torch.rand(4, 8, 2, 3)) for _ in range(3))
    before = [(keys.clone(), values.clone()) for keys, values in cache]
    copy_row(cache, 3, 1, 5)
    for parts, olds in zip(cache, before, strict=True):
        for part, old in zip(parts, olds, strict=True):
            assert torch.equal(part[1, :5], old[3, :5])
            assert torch.equal(part[1, 5:], old[1, 5:])
            assert torch.equal(part[[0, 2, 3]], old[[0, 2, 3]])
