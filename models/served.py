"""The interface of a served model: a step with a static cache, sizes, a tokenizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

Cache = tuple[tuple[Tensor, Tensor], ...]
"""Per layer the keys and the values, each [batch, positions, heads, width]; widths may differ by layer."""


class Sizes(Protocol):
    """The sizes of a model. `context` is the length of the static cache in tokens."""

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


class Served(nn.Module, ABC):
    """A model as all modes run it: weights on their device, in evaluation mode, parameters requiring grad."""

    config: Sizes

    @property
    def architecture(self) -> str:
        """The name of the class that defines its layers."""
        return type(self).__name__

    @abstractmethod
    def forward(self, tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
        """One step.

        Args:
            tokens: int64 [batch, tokens]; one token per sequence in decode, a chunk in prefill.
            positions: int64 [batch], position of each row's first token in its sequence.
            last: int64 [batch], which of this step's tokens predicts the next one.
            cache: of `batch` rows and at least as many positions as these tokens reach; written in place.
                Attention reads all of its positions, so its length is what a step's attention costs.

        Returns:
            Logits [batch, vocabulary] after `last`, and the greedy token, int64 [batch].
        """

    @abstractmethod
    def new_cache(self, rows: int, dtype: torch.dtype) -> Cache:
        """A zeroed cache of the context and one position more, of which steps are given parts.

        Allocate it outside inference mode: every mode writes into it in place.
        """


class TextStream(Protocol):
    """Incremental decoding: the concatenated results of `push` and `flush` are the text of all tokens."""

    def push(self, token: int) -> str:
        """The text that `token` completes."""

    def flush(self) -> str:
        """The remaining text at the end."""


class ServedTokenizer(Protocol):
    """Text to token ids and back, as the model was trained."""

    @property
    def vocabulary(self) -> int:
        """Token ids go from 0 to this, exclusive."""

    @property
    def ends(self) -> frozenset[int]:
        """End tokens: a completion ends after any of these."""

    @property
    def longest_token_bytes(self) -> int | None:
        """No token stands for more bytes of a prompt's UTF-8 than this; None where there is no such bound."""

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that its model requires."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Text of `tokens`."""

    def stream(self) -> TextStream:
        """An incremental decoder."""
