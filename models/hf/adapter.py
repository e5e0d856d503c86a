"""A `transformers` causal model with the step of `Served`: per-row positions, a static cache, one graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from transformers import Cache as LibraryCache
from transformers import PreTrainedConfig, PreTrainedModel

from models.served import Cache, Served

Widths = tuple[tuple[int, int, int], ...]
"""Per layer: heads of the cache, features of a key, features of a value."""

_TAKE = torch.ops.aten.take_along_dim.default


def _take_along_dim(tensor: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """`torch.take_along_dim` as compilers trace it here.

    The library picks the logits to keep with it. torch's own reads sizes as numbers, which fixes those that
    are marked as dynamic: no step of several prefill lengths would compile.
    """
    if dim is None:
        tensor, indices, dim = tensor.flatten(), indices.flatten(), 0
    own, wanted = list(tensor.shape), list(indices.shape)
    own[dim] = wanted[dim] = 1
    common = torch.broadcast_shapes(own, wanted)

    def spread(part: Tensor) -> Tensor:
        sizes = list(common)
        sizes[dim] = part.shape[dim]
        return part.expand(sizes)

    return spread(tensor).gather(dim, spread(indices))


if DispatchKey.CompositeImplicitAutograd not in _TAKE.py_kernels:
    _TAKE.py_impl(DispatchKey.CompositeImplicitAutograd)(_take_along_dim)


@dataclass(frozen=True, slots=True)
class Shape:
    layers: int
    width: int
    vocabulary: int
    context: int


class StepCache(LibraryCache):
    """Writes the keys and values of one step to `rows` and `positions` of the static cache."""

    def __init__(self, cache: Cache, rows: Tensor, positions: Tensor) -> None:
        super().__init__(layers=[])
        self._cache = cache
        self._where = rows, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """Write [batch, heads, tokens, width]; returns all of the layer's cache, in that order too."""
        keys, values = self._cache[layer_idx]
        # Detached: with grad mode on, a tape then lives one step and does not reach through the cache.
        keys.index_put_(self._where, key_states.detach().transpose(1, 2).to(keys.dtype))
        values.index_put_(self._where, value_states.detach().transpose(1, 2).to(values.dtype))
        return keys.transpose(1, 2), values.transpose(1, 2)


class ProbeCache(LibraryCache):
    """Records the shapes of each layer's keys and values, and stores nothing."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.widths: dict[int, tuple[int, int, int]] = {}

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        self.widths[layer_idx] = key_states.shape[1], key_states.shape[3], value_states.shape[3]
        return key_states, value_states


class HuggingFaceModel(Served):
    """`inner` with the step of `Served`, for batches of up to `rows` rows.

    Raises ValueError where `inner` does not keep keys and values for each of its layers.
    """

    columns: Tensor
    rows: Tensor

    def __init__(self, inner: PreTrainedModel, rows: int, context: int) -> None:
        super().__init__()
        self.inner: Any = inner
        parameter = next(inner.parameters())
        device = parameter.device
        self.register_buffer("columns", torch.arange(context + 1, device=device), persistent=False)
        self.register_buffer("rows", torch.arange(rows, device=device).unsqueeze(1), persistent=False)
        self._window = window_of(inner.config)
        kinds = set(getattr(inner.config, "layer_types", None) or ())
        # Where layers differ, the library takes a mask for each kind by name, else one for all of them.
        self._kinds = sorted(kinds & {FULL, SLIDING}) if SLIDING in kinds else []
        self._widths, vocabulary = self._probe()
        self.config = Shape(len(self._widths), inner.config.hidden_size, vocabulary, context)

    @property
    def architecture(self) -> str:
        return type(self.inner).__name__

    @torch.no_grad()
    def _probe(self) -> tuple[Widths, int]:
        """Run one token: the widths of each layer's cache, and the number of logits."""
        cache = ProbeCache()
        zero = self.columns[:1].unsqueeze(0)
        out = self.inner(
            input_ids=zero,
            attention_mask=self._masks(zero, self.columns[:1], self.inner.dtype),
            position_ids=zero,
            past_key_values=cache,
            use_cache=True,
        )
        found = cache.widths
        if not found or sorted(found) != list(range(len(found))):
            raise ValueError("its layers do not each keep their own keys and values")
        return tuple(found[layer] for layer in range(len(found))), out.logits.shape[-1]

    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        batch, count = tokens.shape
        token_positions = positions.unsqueeze(1) + self.columns[:count]
        attended = self.columns[: cache[0][0].shape[1]]
        out = self.inner(
            input_ids=tokens,
            attention_mask=self._masks(token_positions, attended, cache[0][0].dtype),
            position_ids=token_positions,
            use_cache=True,
            past_key_values=StepCache(cache, self.rows[:batch], token_positions),
            logits_to_keep=last.unsqueeze(1) if count > 1 else 0,
        )
        logits = out.logits[:, 0]
        return logits, logits.argmax(dim=-1)

    def _masks(self, positions: Tensor, columns: Tensor, dtype: torch.dtype) -> Any:  # noqa: ANN401 - the library's
        """What is added to the scores of `columns`, for each token at `positions` [batch, tokens].

        [batch, 1, tokens, columns], 0 where it attends: all before a token, or those in a window behind it.
        Four dimensions, so that the library uses it unchanged; additive, because torch turns a boolean mask
        into this in every layer.
        """
        if not self._kinds:
            return _mask(positions, columns, dtype, self._window)
        return {
            kind: _mask(positions, columns, dtype, self._window if kind == SLIDING else None)
            for kind in self._kinds
        }

    def new_cache(self, rows: int, dtype: torch.dtype) -> Cache:
        positions = self.config.context + 1
        device = self.columns.device

        def zeros(heads: int, width: int) -> Tensor:
            return torch.zeros((rows, positions, heads, width), device=device, dtype=dtype)

        return tuple((zeros(heads, key), zeros(heads, value)) for heads, key, value in self._widths)


FULL, SLIDING = "full_attention", "sliding_attention"
"""Names in a configuration's `layer_types`."""


def window_of(config: PreTrainedConfig) -> int | None:
    """Tokens that a sliding layer attends to, itself included; None where no layer of the model slides."""
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    return window if window and (kinds is None or SLIDING in kinds) else None


def _mask(positions: Tensor, columns: Tensor, dtype: torch.dtype, window: int | None) -> Tensor:
    own = positions.unsqueeze(2)
    masked = columns > own
    if window is not None:
        masked = masked | (columns <= own - window)
    return masked.unsqueeze(1).to(dtype) * torch.finfo(dtype).min
