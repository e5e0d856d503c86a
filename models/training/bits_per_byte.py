"""Bits per byte of a text under a model and under n-gram baselines, all on the same tokens; and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from models.tokenizer import Tokenizer
from models.transformer import Attention, Block, Transformer, rotate

_NATS_PER_BIT = math.log(2)


# The forward over whole sequences: no cache, logits at every position


def _attend(attention: Attention, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    c = attention.config
    batch, tokens, _ = x.shape
    projected = attention.query_key_value(x).view(batch, tokens, c.heads + 2 * c.kv_heads, c.head_width)
    turning = projected[:, :, : c.heads + c.kv_heads]
    values = projected[:, :, c.heads + c.kv_heads :]
    turned = rotate(turning, *rotation).to(x.dtype).transpose(1, 2)
    queries = turned[:, : c.heads]
    keys = turned[:, c.heads :]
    mixed = F.scaled_dot_product_attention(
        queries, keys, values.transpose(1, 2).to(x.dtype), is_causal=True, enable_gqa=True
    )
    out: Tensor = attention.output(mixed.transpose(1, 2).reshape(batch, tokens, -1))
    return out


def all_logits(model: Transformer, tokens: Tensor) -> Tensor:
    """Logits [batch, tokens, vocabulary] after each of `tokens`, int64 [batch, tokens] from position 0 on.

    Uses the modules of `model` and equals what its steps return, one position after the other.
    """
    table = model.rotary[: tokens.shape[1]]
    rotation = table[:, 0].unsqueeze(1), table[:, 1].unsqueeze(1)
    x = model.embedding(tokens)
    for module in model.blocks:
        block = cast(Block, module)
        x = x + _attend(block.attention, block.attention_norm(x), rotation)
        x = x + block.feed_forward(block.feed_forward_norm(x))
    out: Tensor = model.head(model.norm(x))
    return out


def loss(model: Transformer, tokens: Tensor) -> Tensor:
    """Mean cross-entropy, nats per token, of predicting `tokens` [batch, tokens + 1] from those before."""
    logits = all_logits(model, tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


# Bits


def with_start(texts: Sequence[str], tokenizer: Tokenizer) -> list[NDArray[np.int64]]:
    """Tokens of each of `texts` after one end-of-text token, from which the first is predicted."""
    encoded = tokenizer.encode_batch(texts)
    return [np.array([tokenizer.end_of_text, *ids], dtype=np.int64) for ids in encoded]


@torch.inference_mode()
def transformer_bits(
    model: Transformer, files: Sequence[NDArray[np.int64]], length: int, autocast: bool = False
) -> float:
    """Bits that `model` needs for all tokens of `files` but the first of each.

    Every token is counted once, in independent windows of `length`: an upper bound. `autocast` multiplies in
    bfloat16: faster, and accurate enough to monitor a training.
    """
    device = model.embedding.weight.device
    windows = [
        file[start : start + length + 1] for file in files for start in range(0, len(file) - 1, length)
    ]
    windows.sort(key=len)
    nats = 0.0
    for start in range(0, len(windows), 16):
        group = windows[start : start + 16]
        padded = np.full((len(group), len(group[-1])), -1, dtype=np.int64)
        for row, window in zip(padded, group, strict=True):
            row[: len(window)] = window
        tokens = torch.from_numpy(padded).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
            logits = all_logits(model, tokens[:, :-1].clamp(min=0))
        targets = tokens[:, 1:].flatten()
        nats += F.cross_entropy(
            logits.flatten(0, 1).float(), targets, ignore_index=-1, reduction="sum"
        ).item()
    return nats / _NATS_PER_BIT


class NgramCounts:
    """Unigram and bigram counts of a training text over an alphabet of `symbols` symbols.

    The bigram is the unigram where nothing was seen and leans on it by Witten and Bell's weights otherwise:
    p(b | a) = (count(a, b) + kinds(a) p(b)) / (count(a) + kinds(a)), kinds(a) being how many different
    symbols followed a (IEEE Transactions on Information Theory 37(4), 1991, method C).
    """

    def __init__(self, files: Sequence[NDArray[np.int64]], symbols: int) -> None:
        self._symbols = symbols
        following = np.concatenate([file[1:] for file in files])
        counts = np.bincount(following, minlength=symbols) + 1.0  # add one: no symbol is impossible
        self._unigram = counts / counts.sum()
        pairs = np.concatenate([self._pairs(file) for file in files])
        self._seen, self._pair_counts = np.unique(pairs, return_counts=True)
        first = self._seen // symbols
        self._kinds = np.bincount(first, minlength=symbols)
        self._totals = np.bincount(first, weights=self._pair_counts, minlength=symbols)

    def _pairs(self, file: NDArray[np.int64]) -> NDArray[np.int64]:
        return file[:-1] * self._symbols + file[1:]

    def unigram_bits(self, files: Sequence[NDArray[np.int64]]) -> float:
        """Bits for all symbols of `files` but the first of each, from their frequencies alone."""
        return float(sum(-np.log2(self._unigram[file[1:]]).sum() for file in files))

    def bigram_bits(self, files: Sequence[NDArray[np.int64]]) -> float:
        """Bits for all symbols of `files` but the first of each, from the symbol before."""
        return float(sum(-np.log2(self._bigram(file)).sum() for file in files))

    def _bigram(self, file: NDArray[np.int64]) -> NDArray[np.float64]:
        pairs = self._pairs(file)
        before = file[:-1]
        prior = self._unigram[file[1:]]
        place = np.minimum(np.searchsorted(self._seen, pairs), len(self._seen) - 1)
        count = np.where(self._seen[place] == pairs, self._pair_counts[place], 0)
        kinds = self._kinds[before]
        total = self._totals[before]
        mixed = (count + kinds * prior) / np.maximum(total + kinds, 1)
        probability: NDArray[np.float64] = np.where(total > 0, mixed, prior)
        return probability
