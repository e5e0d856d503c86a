"""What the engine asks of any model: a step with a static cache, sizes, a hollow twin, a tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

Cache = tuple[tuple[Tensor, Tensor], ...]
"""Per layer the keys and the values, each [batch, context, heads, width]; widths may differ by layer."""

TWIN_CONTEXT = 64
"""Positions of a hollow twin's cache: its steps stand at the first."""


class Sizes(Protocol):
    """What there is to know of a model's shape. `context` is the length of the static cache in tokens."""

    @property
    def layers(self) -> int:
        """Decoder layers."""

    @property
    def width(self) -> int:
        """Features of the residual stream."""

    @property
    def vocabulary(self) -> int:
        """Logits per position."""

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together, at most."""


class NoTwin(Exception):
    """A model whose hollow twin cannot be built; the message says why."""


class Served(nn.Module, ABC):
    """A model as the ladder runs it: weights on their device, in evaluation, parameters requiring grad."""

    config: Sizes

    @abstractmethod
    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            tokens: int64 [batch, tokens]; one token per sequence in decode, a chunk in prefill.
            positions: int64 [batch], where each row's first token stands in its sequence.
            last: int64 [batch], which of this step's tokens predicts the next one.
            cache: of at least `batch` rows; written in place.

        Returns:
            Logits [batch, vocabulary] after `last`, and the greedy token, int64 [batch].
        """

    @abstractmethod
    def new_cache(self, rows: int, dtype: torch.dtype) -> Cache:
        """A zeroed cache. Allocate it outside inference mode: every mode writes into it in place."""

    @abstractmethod
    def twin(self) -> Served:
        """The same layers, operators and module names, the widths so small that kernels do next to nothing.

        On the device and in the dtypes of this model, its context shortened to TWIN_CONTEXT or less. Raises
        NoTwin where there can be none.
        """


class TextStream(Protocol):
    """Decodes tokens that come one by one: what `push` and `flush` return, joined, is the text of all."""

    def push(self, token: int) -> str:
        """The text that `token` completes."""

    def flush(self) -> str:
        """What is left at the end."""


class ServedTokenizer(Protocol):
    """Text to token ids and back, as the model was trained."""

    @property
    def vocabulary(self) -> int:
        """Token ids go from 0 to this, exclusive."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens after which a completion is complete."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with what its model wants before it."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`."""

    def stream(self) -> TextStream:
        """A decoder for tokens that come one by one."""
