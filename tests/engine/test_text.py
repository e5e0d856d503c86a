"""A prompt that cannot fit is refused; tokens become the same text however a row ends."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from models.checkpoint import TINY_FOLDER
from models.tokenizer import ByteLevelStream, Tokenizer
from service.engine.inbox import local_job
from service.engine.text import Completions, JobError, encode_prompts
from service.records import Output

A, B, LEAD_BYTE, STOP, STOP_AND_LEAD_BYTE, END = range(6)
BYTES = [b"a", b"b", b"\xc3", b";", b";\xc3", b"</s>"]
"""C3 begins a character of two bytes. This end of text has bytes, as those of some models have."""

KINDS: list[dict[str, object]] = [
    {},
    {"stream": True},
    {"stop": ["absent"]},
    {"stream": True, "stop": ["absent"]},
]


class ByteTokenizer(Tokenizer):
    """Six tokens, given by their bytes."""

    def __init__(self) -> None:
        self.ends = frozenset([END])

    def bytes_of(self, token: int) -> bytes:
        return BYTES[token]

    def decode(self, tokens: Iterable[int]) -> str:
        return b"".join(map(self.bytes_of, tokens)).decode(errors="replace")

    def stream(self) -> ByteLevelStream:
        return ByteLevelStream(self)


def complete(tokens: list[int], new_tokens: int, **options: object) -> Output:
    """One row's output after `tokens`; asserts that what is streamed is exactly its text."""
    job = local_job("a", "eager", ["x"], new_tokens, **options)
    rows = Completions(job, ByteTokenizer())
    streamed = ""
    for token in tokens:
        assert not rows.complete
        streamed += "".join(row.unsent() for _, row in rows.take_in([token]))
    streamed += "".join(row.unsent() for _, row in rows.end())
    assert not rows.end()
    if job.stream:
        assert streamed == rows.outputs()[0].text
    return rows.outputs()[0]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
    ("tokens", "new_tokens", "finish_reason"),
    [([A, B, LEAD_BYTE], 3, "length"), ([A, B, LEAD_BYTE, END], 9, "stop"), ([A, B, LEAD_BYTE], 9, "length")],
    ids=["length", "end of text", "interrupted"],
)
def test_an_incomplete_character_at_the_end_is_answered_however_the_row_ends(
    tokens: list[int], new_tokens: int, finish_reason: str, options: dict[str, object]
) -> None:
    output = complete(tokens, new_tokens, **options)
    assert (output.text, output.finish_reason) == ("ab\ufffd", finish_reason)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("tokens", "new_tokens", "stop", "text", "finish_reason"),
    [
        ([A, LEAD_BYTE, B, STOP], 9, ";", "a\ufffdb", "stop"),
        ([A, STOP_AND_LEAD_BYTE], 2, ";", "a", "stop"),
        ([A, STOP_AND_LEAD_BYTE], 9, ";", "a", "stop"),
        ([A, B, STOP], 9, ";;;", "ab;", "length"),
    ],
    ids=["incomplete before it", "incomplete behind it, at the end", "incomplete behind it", "interrupted"],
)
def test_what_follows_a_stop_string_is_left_out_and_nothing_else(
    tokens: list[int], new_tokens: int, stop: str, text: str, finish_reason: str, stream: bool
) -> None:
    output = complete(tokens, new_tokens, stop=[stop], stream=stream)
    assert (output.text, output.finish_reason) == (text, finish_reason)


def test_the_end_of_text_token_stops_a_row_unless_ignored() -> None:
    tokenizer = Tokenizer.load(TINY_FOLDER)
    for ignore, expected in ((False, ["stop", None]), (True, [None, None])):
        rows = Completions(local_job("a", "eager", ["x", "y"], 3, ignore_eos=ignore), tokenizer)
        rows.take_in([tokenizer.end_of_text, 5])
        assert [row.finish_reason for row in rows._rows] == expected
        assert not rows.complete
    rows = Completions(local_job("a", "eager", ["x", "y"], 3), tokenizer)
    for tokens in ([tokenizer.end_of_text, 5], [9, 6], [9, 7]):
        rows.take_in(tokens)
    assert rows.complete
    assert [output.token_ids for output in rows.outputs()] == [[tokenizer.end_of_text], [5, 6, 7]]


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
    unwilling: Any = SimpleNamespace(
        vocabulary=8, longest_token_bytes=longest, encode=lambda _: pytest.fail("it was encoded")
    )
    with pytest.raises(JobError, match=f"a prompt of {size} for a context of 100: shorten it"):
        encode_prompts([prompt], unwilling, 100, 1)
