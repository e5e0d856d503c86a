"""Greedy decoding by steps, written out plainly: prefill in chunks, then one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from models.transformer import Transformer, new_cache


@torch.no_grad()
def greedy(model: Transformer, prompts: list[list[int]], new: int, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """Continue right-padded `prompts` by `new` tokens.

    Returns tokens int64 [batch, new] and the logits [batch, new, vocabulary] that chose them.
    """
    batch, lengths = len(prompts), torch.tensor([len(prompt) for prompt in prompts])
    weight = model.embedding.weight
    cache = new_cache(model.config, batch, weight.device, weight.dtype)
    padded = torch.zeros(batch, -(-int(lengths.max()) // chunk) * chunk, dtype=torch.int64)
    for row, prompt in zip(padded, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt)
    logits = torch.zeros(batch, model.config.vocabulary)
    for begin in range(0, padded.shape[1], chunk):
        last = (lengths - 1 - begin).clamp(0, chunk - 1)
        positions = torch.full((batch,), begin)
        step, _ = model(padded[:, begin : begin + chunk], positions, last, cache)
        logits = torch.where((lengths > begin).unsqueeze(1), step, logits)
    seen = [logits]
    for count in range(new - 1):
        tokens = seen[-1].argmax(dim=-1, keepdim=True)
        step, _ = model(tokens, lengths + count, torch.zeros_like(lengths), cache)
        seen.append(step)
    every = torch.stack(seen, dim=1)
    return every.argmax(dim=-1), every
