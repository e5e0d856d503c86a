"""Checks that a model's stepwise logits equal those of its own forward over the whole sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from models.hf.adapter import HuggingFaceModel

LENGTHS = (9, 4)
"""Tokens of the two rows; the last two of each are decoded one by one."""

ALLOWED = {torch.float32: 1e-3}
ALLOWED_BELOW = 0.1
"""Relative to the logits' norm: far above rounding in narrower types, far below a wrong mask's effect."""


@torch.no_grad()
def check(model: HuggingFaceModel) -> None:
    """Step a ragged batch by chunk and by token. Raises ValueError where the logits differ."""
    device = model.columns.device
    rows = min(len(LENGTHS), len(model.rows))
    lengths = torch.tensor(LENGTHS[:rows], device=device)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(model.config.vocabulary, (rows, max(LENGTHS)), generator=generator).to(device)
    dtype = next(model.parameters()).dtype
    cache = model.new_cache(rows, dtype)
    zeros = torch.zeros_like(lengths)
    chunk = text[:, : max(LENGTHS) - 2]
    stepped = [model(chunk, zeros, lengths - 3, cache)[0]]
    for place in (lengths - 2, lengths - 1):
        stepped.append(model(text.gather(1, place.unsqueeze(1)), place, zeros, cache)[0])
    found = torch.stack(stepped, dim=1).float()
    expected = torch.stack([_own(model, row[:length]) for row, length in zip(text, LENGTHS, strict=False)])
    allowed = ALLOWED.get(dtype, ALLOWED_BELOW)
    difference = float((found - expected).norm() / expected.norm())
    if not difference <= allowed:
        raise ValueError(f"its logits by steps differ from its own by {difference:.1%} of their norm")


def _own(model: HuggingFaceModel, tokens: Tensor) -> Tensor:
    """The last three logits [3, vocabulary] of `tokens` [length] in one call, without any cache."""
    logits: Tensor = model.inner(input_ids=tokens.unsqueeze(0), use_cache=False).logits
    return logits[0, -3:].float()
