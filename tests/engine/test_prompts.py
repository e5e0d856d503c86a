"""Prompts cut into padded prefill chunks."""

from __future__ import annotations

import pytest

from service.engine.prompts import lay_out


def test_a_layout_puts_every_token_in_its_chunk_and_pads_on_the_right() -> None:
    layout = lay_out([[1, 2, 3], [4, 5, 6, 7, 8]], bucket=4, sizes=[3], pinned=False)
    assert layout.chunks[0].tolist() == [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0]]
    assert layout.chunks[1].tolist() == [[0, 0, 0], [7, 8, 0], [0, 0, 0], [0, 0, 0]]
    assert layout.last.tolist() == [[2, 2, 0, 0], [0, 1, 0, 0]]
    assert layout.contains.tolist() == [[True, True, True, True], [False, True, False, False]]
    assert layout.lengths.tolist() == [3, 5, 1, 1]


@pytest.mark.parametrize(
    ("tokens", "lengths"), [(1, [2]), (2, [2]), (3, [4]), (8, [8]), (9, [8, 2]), (11, [8, 4]), (16, [8, 8])]
)
def test_only_the_last_chunk_is_shorter_and_pads_to_the_next_length(tokens: int, lengths: list[int]) -> None:
    layout = lay_out([list(range(tokens))], bucket=1, sizes=[2, 4, 8], pinned=False)
    assert [chunk.shape[1] for chunk in layout.chunks] == lengths
    flat = [token for chunk in layout.chunks for token in chunk[0].tolist()]
    assert flat[:tokens] == list(range(tokens))
    assert not any(flat[tokens:])
