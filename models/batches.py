"""What training sees: windows of tokens in a seeded order, the text cut where a prompt might end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.tokenizer import Tokenizer

_PIECE_CHARACTERS = 48
"""Mean length of the pieces that are encoded on their own, in characters."""


def pieces(text: str, random: np.random.Generator) -> list[str]:
    """`text` cut at random places into pieces of about 48 characters.

    A prompt ends anywhere, often inside what would be one token ("import o" of " os"). Encoded in pieces, the
    text holds such ends, and the model learns to go on from them.
    """
    cuts = np.sort(random.integers(0, len(text) + 1, size=len(text) // _PIECE_CHARACTERS)).tolist()
    ends = zip([0, *cuts], [*cuts, len(text)], strict=True)
    return [text[start:end] for start, end in ends if start < end]


def epoch_windows(
    texts: Sequence[str], tokenizer: Tokenizer, length: int, seed: tuple[int, int]
) -> NDArray[np.int64]:
    """All of `texts` once, shuffled, as windows [windows, length + 1] that overlap by one token.

    Each text starts after an end-of-text token. `seed` is (run, epoch): the same gives the same windows.
    """
    random = np.random.default_rng(seed)
    cut = [pieces(texts[place], random) for place in random.permutation(len(texts))]
    encoded = tokenizer.encode_batch([piece for text in cut for piece in ["", *text]])
    tokens = np.fromiter(
        (token for ids in encoded for token in (ids or (tokenizer.end_of_text,))), dtype=np.int64
    )
    tokens = tokens[random.integers(0, length) :]
    count = (len(tokens) - 1) // length
    windows = np.lib.stride_tricks.sliding_window_view(tokens, length + 1)[: count * length : length]
    return np.ascontiguousarray(windows[random.permutation(count)])


def batches(
    texts: Sequence[str], tokenizer: Tokenizer, batch: int, length: int, seed: int, skip: int
) -> Iterator[Tensor]:
    """Batches int64 [batch, length + 1] without end, epoch after epoch; the first `skip` are left out."""
    epoch = 0
    while True:
        windows = epoch_windows(texts, tokenizer, length, (seed, epoch))
        usable = len(windows) // batch
        if not usable:
            raise ValueError(f"the text fills {len(windows)} windows of {length} tokens, not one batch of {batch}")
        for place in range(skip, usable):
            yield torch.from_numpy(windows[place * batch : (place + 1) * batch])
        skip = max(0, skip - usable)
        epoch += 1
