"""The model's forward over whole sequences, for training: no cache, logits at every position."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.nn import functional as F

from models.transformer import Attention, Block, Transformer, rotate


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
