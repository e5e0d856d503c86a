"""Checks that a model's stepwise logits equal those of its own forward over the whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from models.hf.adapter import HuggingFaceModel
from models.hf.masks import window_of
from models.served import Cache

LENGTHS = (9, 4)
"""Tokens of the two rows; the last two of each are decoded one by one."""

PIECE = 64
"""Tokens of one step: all of a long window at once would take scores as large as their square."""

BEYOND = 5
"""So many tokens more than a sliding window, or than a switch of its positions, are stepped."""

SHORTEST_REACH = 64
"""Positions that attention reads at least, as in serving."""

END_CHECKED = 512
"""A longer context is not stepped to its end, only beyond what the configuration names."""

ALLOWED = {torch.float32: 1e-3}
ALLOWED_BELOW = 0.1
"""Relative to the logits' norm: far above rounding in narrower types, far below a wrong mask's effect."""


def regimes(config: PreTrainedConfig) -> dict[int, str]:
    """By length: what `config` says ends behind so many tokens."""
    named = {window_of(config): "its window", getattr(config, "window_size", None): "its window"}
    rotary = getattr(config, "rope_parameters", None) or {}
    for part in (rotary, *(part for part in rotary.values() if isinstance(part, dict))):
        named[part.get("original_max_position_embeddings")] = "the original length of its rotary positions"
    found = {length: what for length, what in named.items() if isinstance(length, int)}
    return dict(sorted(found.items()))


@torch.no_grad()
def check(model: HuggingFaceModel) -> None:
    """Step ragged batches by chunk and by token, beyond each of the configuration's regimes too.

    Raises ValueError where the logits differ.
    """
    context = model.config.context
    short = (min(LENGTHS[0], context), LENGTHS[1])
    _compare(model, short, min(SHORTEST_REACH, context), "its logits by steps")
    for length, what in regimes(model.inner.config).items():
        if length < context:
            said = f"its logits by steps beyond {what} of {length} tokens"
            beyond = min(max(length, LENGTHS[0]) + BEYOND, context)
            _compare(model, (beyond, max(length, LENGTHS[1])), context, said)
    if max(LENGTHS) < context <= END_CHECKED:
        _compare(model, (context,), context, f"its logits by steps at the end of {context} tokens")


def _compare(model: HuggingFaceModel, lengths: tuple[int, ...], reach: int, what: str) -> None:
    """Attention reads `reach` positions, as in serving, where no step reads more than the context."""
    device = model.columns.device
    rows = min(len(lengths), len(model.rows))
    ends = torch.tensor(lengths[:rows], device=device)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(model.config.vocabulary, (rows, max(lengths)), generator=generator).to(device)
    dtype = next(model.parameters()).dtype
    cache = tuple((keys[:, :reach], values[:, :reach]) for keys, values in model.new_cache(rows, dtype))
    zeros = torch.zeros_like(ends)
    stepped = [_prefilled(model, text[:, : max(lengths) - 2], ends - 3, cache)]
    for place in (ends - 2, ends - 1):
        stepped.append(model(text.gather(1, place.unsqueeze(1)), place, zeros, cache)[0])
    found = torch.stack(stepped, dim=1).float()
    expected = torch.stack([_own(model, row[:length]) for row, length in zip(text, lengths, strict=False)])
    allowed = ALLOWED.get(dtype, ALLOWED_BELOW)
    difference = float((found - expected).norm() / expected.norm())
    if not difference <= allowed:
        raise ValueError(f"{what} differ from its own by {difference:.1%} of their norm")


def _prefilled(model: HuggingFaceModel, text: Tensor, wanted: Tensor, cache: Cache) -> Tensor:
    """The logits at the places `wanted` [rows], with `text` stepped in pieces, as in serving."""
    logits = torch.zeros(len(wanted), model.config.vocabulary, device=text.device)
    for begin in range(0, text.shape[1], PIECE):
        piece = text[:, begin : begin + PIECE]
        last = (wanted - begin).clamp(0, piece.shape[1] - 1)
        found = model(piece, torch.full_like(wanted, begin), last, cache)[0].float()
        inside = (wanted >= begin) & (wanted < begin + PIECE)
        logits = torch.where(inside.unsqueeze(1), found, logits)
    return logits


def _own(model: HuggingFaceModel, tokens: Tensor) -> Tensor:
    """The last three logits [3, vocabulary] of `tokens` [length] in one call, without any cache."""
    logits: Tensor = model.inner(input_ids=tokens.unsqueeze(0), use_cache=False, logits_to_keep=3).logits
    return logits[0].float()
