"""Prompts become token ids, and token ids become right-padded prefill chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.served import ServedTokenizer
from models.tokenizer import TokenizerError
from service.engine.job_result import JobError

UNBOUNDED_TOKEN_BYTES = 64
"""Of a prompt per token of the context, where a tokenizer may make one token of any length of text, or none.

Prose has four or five. What is over it would nearly always be over the context, once it had been encoded.
"""


def encode_prompts(
    prompts: Sequence[str | list[int]], tokenizer: ServedTokenizer, context: int
) -> list[list[int]]:
    """Token ids of each prompt, given as text or as ids.

    Raises JobError for an id outside the vocabulary, for text that makes one, and for a prompt that is too
    long whatever it says: a megabyte of text takes this thread longer to encode than many requests to be
    served.
    """
    most = most_prompt_bytes(tokenizer, context)
    for prompt in prompts:
        _refuse_hopeless(prompt, most, context)
    try:
        return [
            tokenizer.encode(prompt) if isinstance(prompt, str) else _checked(prompt, tokenizer.vocabulary)
            for prompt in prompts
        ]
    except TokenizerError as error:
        raise JobError("invalid_request", str(error), "prompts") from error


def most_prompt_bytes(tokenizer: ServedTokenizer, context: int) -> int:
    """The UTF-8 of a prompt that is encoded, at most: what `context` of the tokenizer's longest tokens stand
    for. Where these have no bound, UNBOUNDED_TOKEN_BYTES for each.
    """
    return context * (tokenizer.longest_token_bytes or UNBOUNDED_TOKEN_BYTES)


def _refuse_hopeless(prompt: str | list[int], most_bytes: int, context: int) -> None:
    """By its size alone; the front does the same with text, before it sends it."""
    if isinstance(prompt, list):
        size, most, unit = len(prompt), context, "tokens"
    else:
        size, most, unit = len(prompt.encode(errors="replace")), most_bytes, "bytes"
    if size > most:
        text = f"a prompt of {size} {unit} is over the limit of {most} for a context of {context}: shorten it"
        raise JobError("prompt_too_long", text, "prompts")


def check_lengths(prompts: list[list[int]], new_tokens: int, context: int) -> None:
    """Raise JobError for a prompt without tokens, or one that with `new_tokens` exceeds `context`."""
    if not all(prompts):
        raise JobError("invalid_request", "a prompt has no tokens: write at least a word", "prompts")
    longest = max(map(len, prompts))
    if longest + new_tokens > context:
        raise JobError(
            "prompt_too_long",
            f"the longest prompt has {longest} tokens; with {new_tokens} new ones that is over"
            f" the context of {context}: shorten the prompt or ask for fewer tokens",
            "prompts",
        )


def _checked(prompt: list[int], vocabulary: int) -> list[int]:
    """`prompt`; raises JobError for a token id outside [0, vocabulary)."""
    invalid = [token for token in prompt if not 0 <= token < vocabulary]
    if invalid:
        message = f"there is no token {invalid[0]}: ids go from 0 to {vocabulary - 1}"
        raise JobError("invalid_request", message, "prompts")
    return prompt


@dataclass(frozen=True, slots=True)
class Layout:
    """A ragged batch cut into prefill chunks, on the host (pinned for CUDA, so that copies need no wait).

    `chunks` int64 [bucket, chunk] each, the last one as short as its prompts allow; `last` int64 [count,
    bucket], the index in each chunk of a row's last token; `contains` bool [count, bucket], whether a row has
    tokens in that chunk; `lengths` int64 [bucket].
    """

    chunks: list[Tensor]
    last: Tensor
    contains: Tensor
    lengths: Tensor


def lay_out(prompts: list[list[int]], bucket: int, sizes: Sequence[int], pinned: bool) -> Layout:
    """Right-pad `prompts` with token 0 to chunks, and the batch with one-token rows to `bucket`.

    `sizes` are the lengths of a chunk, ascending: all are of the longest but the last, which is of the
    shortest that holds what is left.
    """
    filled = prompts + [[0]] * (bucket - len(prompts))
    lengths = [len(prompt) for prompt in filled]
    longest, chunk = max(lengths), sizes[-1]
    begins = range(0, longest, chunk)
    last_size = next(size for size in sizes if size >= longest - begins[-1])
    total = begins[-1] + last_size

    def tensor(values: object) -> Tensor:
        return torch.tensor(values, pin_memory=pinned)

    padded = [prompt + [0] * (total - len(prompt)) for prompt in filled]
    return Layout(
        chunks=[tensor([row[begin : begin + chunk] for row in padded]) for begin in begins],
        last=tensor([[min(max(length - 1 - begin, 0), chunk - 1) for length in lengths] for begin in begins]),
        contains=tensor([[length > begin for length in lengths] for begin in begins]),
        lengths=tensor(lengths),
    )
