"""Prompts cut into padded prefill chunks."""

from __future__ import annotations

import pytest

from models.checkpoint import TINY_FOLDER
from models.tokenizer import Tokenizer
from service.engine.generation import lay_out
from service.engine.text import JobError, encode_prompts


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


class Unwilling:
    """Encodes nothing."""

    vocabulary = 8

    def __init__(self, longest_token_bytes: int | None) -> None:
        self.longest_token_bytes = longest_token_bytes

    def encode(self, text: str) -> list[int]:
        raise AssertionError("a prompt was encoded that cannot fit")


@pytest.mark.parametrize(
    ("prompt", "longest", "size"),
    [
        ("é" * 101, 2, "202 bytes is over the limit of 200"),
        ("é" * 3201, None, "6402 bytes is over the limit of 6400"),
        ([0] * 101, 2, "101 tokens is over the limit of 100"),
    ],
)
def test_a_prompt_that_cannot_fit_is_refused_before_it_is_encoded(
    prompt: str | list[int], longest: int | None, size: str
) -> None:
    with pytest.raises(JobError, match=f"a prompt of {size} for a context of 100: shorten it"):
        encode_prompts([prompt], Unwilling(longest), 100)  # type: ignore[arg-type]


@pytest.mark.parametrize("longest", [2, None])
def test_a_prompt_that_may_fit_is_encoded(longest: int | None) -> None:
    with pytest.raises(AssertionError, match="was encoded"):
        encode_prompts(["x" * 200], Unwilling(longest), 100)  # type: ignore[arg-type]


def test_no_prompt_of_the_own_tokenizer_has_fewer_tokens_than_its_bytes_say() -> None:
    tokenizer = Tokenizer.load(TINY_FOLDER)
    longest = tokenizer.longest_token_bytes
    assert longest is not None
    for text in ("import numpy as np", " " * 500, "é🙂" * 50, "self.assertEqual(" * 20):
        assert len(tokenizer.encode(text)) * longest >= len(text.encode())
