"""Prompts cut into padded prefill chunks."""

from __future__ import annotations

from service.engine.prompts import lay_out


def test_a_layout_puts_every_token_in_its_chunk_and_pads_on_the_right() -> None:
    layout = lay_out([[1, 2, 3], [4, 5, 6, 7, 8]], bucket=4, chunk=3, pinned=False)
    assert layout.chunks.tolist()[0] == [[1, 2, 3], [4, 5, 6], [0, 0, 0], [0, 0, 0]]
    assert layout.chunks.tolist()[1] == [[0, 0, 0], [7, 8, 0], [0, 0, 0], [0, 0, 0]]
    assert layout.last.tolist() == [[2, 2, 0, 0], [0, 1, 0, 0]]
    assert layout.reaches.tolist() == [[True, True, True, True], [False, True, False, False]]
    assert layout.lengths.tolist() == [3, 5, 1, 1]
