"""A Llama-style decoder with a static KV cache: one forward is one step, of prefill or of decode."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.config import Config
from models.served import Cache, Served


def rotary_table(config: Config) -> Tensor:
    """Cosines and sines of rotary positions, float32 [context, 2, head_width] (Su et al., arXiv:2104.09864).

    Halves are paired (feature i with i + head_width / 2), as in Hugging Face's Llama.
    """
    exponents = torch.arange(0, config.head_width, 2, dtype=torch.float32) / config.head_width
    angles = torch.outer(torch.arange(config.context, dtype=torch.float32), config.rope_theta**-exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return torch.stack((angles.cos(), angles.sin()), dim=1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [batch, tokens, heads, head_width] by `cos` and `sin` [batch, tokens, 1, head_width]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """`scaled_dot_product_attention` as products and sums for few queries: a compiler fuses them.

    `q` and the result are [batch, kv_heads, rows, head_width], `keys` and `values` [batch, reach, kv_heads,
    head_width]; `mask` [batch, 1, rows, reach] is added to the scores.
    """
    keys, values = (cached.transpose(1, 2).unsqueeze(2) for cached in (keys, values))
    scores = (q.unsqueeze(3) * keys).sum(dim=-1) * q.shape[-1] ** -0.5 + mask
    mixed: Tensor = (scores.softmax(dim=-1).unsqueeze(-1) * values).sum(dim=-2)
    return mixed


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich, arXiv:1910.07467) over the last dimension."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al., arXiv:2305.13245) over the static cache."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        features = (config.heads + 2 * config.kv_heads) * config.head_width
        self.query_key_value = nn.Linear(config.width, features, bias=False)
        self.output = nn.Linear(config.heads * config.head_width, config.width, bias=False)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor,
        where: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Write this step's keys and values at `where`, then attend; `mask` is added to the scores.

        `x` and the result are [batch · tokens, width]. The heads of a group are laid out as extra query rows,
        so that keys and values are read in place: no copy per head, and no attention backend is excluded, as
        `enable_gqa` would.
        """
        c = self.config
        batch, tokens = where[1].shape
        projected = self.query_key_value(x).view(batch, tokens, c.heads + 2 * c.kv_heads, c.head_width)
        unrotated, v = projected.split([c.heads + c.kv_heads, c.kv_heads], dim=2)
        q, k = rotate(unrotated, *rotation).split([c.heads, c.kv_heads], dim=2)
        # Detached: with grad mode on, a tape then lives one step and does not reach through the cache.
        keys = cache[0].index_put_(where, k.detach())
        values = cache[1].index_put_(where, v.detach())
        q = q.reshape(batch, tokens, c.kv_heads, -1, c.head_width).permute(0, 2, 3, 1, 4)
        q = q.reshape(batch, c.kv_heads, -1, c.head_width)
        if tokens == 1 and q.device.type == "cpu" and torch.compiler.is_compiling():
            # Of the library's kernel a compiler makes a call, whose products of a few rows take longer.
            mixed = attend(q, keys, values, mask)
        else:
            mixed = F.scaled_dot_product_attention(
                q, keys.transpose(1, 2), values.transpose(1, 2), attn_mask=mask
            )
        mixed = mixed.reshape(batch, c.heads, tokens, c.head_width).transpose(1, 2)
        out: Tensor = self.output(mixed.reshape(batch * tokens, -1))
        return out


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, arXiv:2002.05202)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.width, 2 * config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate) * up)
        return out


class Block(nn.Module):
    """One pre-norm decoder layer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.norm_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.width, config.norm_epsilon)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor,
        where: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
    ) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask, where, cache)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Transformer(Served):
    """The decoder. Weights are drawn from `seed` until a checkpoint is loaded over them."""

    config: Config
    rotary: Tensor
    columns: Tensor
    rows: Tensor

    def __init__(self, config: Config, max_batch: int, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.norm_epsilon)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        generator = torch.Generator().manual_seed(seed)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        if config.tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("rotary", rotary_table(config), persistent=False)
        self.register_buffer("columns", torch.arange(config.context + 1), persistent=False)
        self.register_buffer("rows", torch.arange(max_batch).unsqueeze(1), persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        batch, count = tokens.shape
        token_positions = positions.unsqueeze(1) + self.columns[:count]
        table = self.rotary[token_positions]
        rotation = table[:, :, 0].unsqueeze(2), table[:, :, 1].unsqueeze(2)
        groups = self.config.heads // self.config.kv_heads
        attended, dtype = self.columns[: cache[0][0].shape[1]], cache[0][0].dtype
        masked = (attended > token_positions.unsqueeze(2)).unsqueeze(1).repeat(1, 1, groups, 1)
        # A boolean mask would be turned into this one in every layer. Finite, because 0 · −∞ is no number.
        mask = masked.to(dtype) * torch.finfo(dtype).min
        where = self.rows[:batch], token_positions
        # Two dimensions from here on: a product over [batch, 1, width] costs views around every call in eager
        # modes, and in compiled ones a copy, because Inductor gives the dimension of size 1 a stride of 0.
        x = self.embedding(tokens.reshape(-1))
        for block, layer_cache in zip(self.blocks, cache, strict=True):
            x = block(x, rotation, mask, where, layer_cache)
        if count > 1:
            x = x.view(batch, count, -1)[self.rows[:batch, 0], last]
        logits = self.head(self.norm(x))
        return logits, logits.argmax(dim=-1)

    def new_cache(self, rows: int, dtype: torch.dtype) -> Cache:
        c = self.config
        shape = rows, c.context + 1, c.kv_heads, c.head_width

        def zeros() -> Tensor:
            return torch.zeros(shape, device=self.rotary.device, dtype=dtype)

        return tuple((zeros(), zeros()) for _ in range(c.layers))
