"""The interface of a served model: a step with a static cache, sizes, a tokenizer; how its weights lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

Cache = tuple[tuple[Tensor, Tensor], ...]
"""Per layer the keys and the values, each [batch, positions, heads, width]; widths may differ by layer."""


class Sizes(Protocol):
    """Decoder layers, features of the residual stream, logits per position, tokens of the static cache."""

    @property
    def layers(self) -> int: ...

    @property
    def width(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def context(self) -> int: ...


class Served(nn.Module, ABC):
    """A model as all modes run it: weights on their device, in evaluation mode, parameters requiring grad."""

    config: Sizes

    @property
    def architecture(self) -> str:
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

        Allocate it outside inference mode: every mode writes into it in place. With the one position more no
        part is contiguous: else a compiled step, guarded on whether it is, would be compiled again for the
        whole context.
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


Layout = Literal["aten", "transposed"]
"""`aten`: rows are output features, as `nn.Linear` keeps them. `transposed`: rows are input features, so that
the product of a few tokens runs through the weights in the order in which they lie."""

Model = TypeVar("Model", bound=nn.Module)


def linears(model: nn.Module) -> Iterator[nn.Linear]:
    return (module for module in model.modules() if isinstance(module, nn.Linear))


def laid_out(weight: Tensor, layout: Layout) -> Tensor:
    """A copy of `weight` [out, in], with the same shape and the strides of `layout`."""
    if layout == "aten":
        return weight.detach().clone(memory_format=torch.contiguous_format)
    return weight.detach().t().contiguous().t()


def layout_of(model: nn.Module) -> Layout:
    """The layout of the linear layers of `model`; `aten` where it has none."""
    weights = (linear.weight for linear in linears(model))
    return "transposed" if any(w.stride(0) == 1 and w.stride(1) > 1 for w in weights) else "aten"


def lay_out(model: Model, layout: Layout) -> Model:
    """`model` itself, the weights of its linear layers now in `layout`. A weight that is tied to an embedding
    becomes a copy of its own where the layout changes: an embedding reads its table by rows.
    """
    if layout != layout_of(model):
        for linear in linears(model):
            weight = linear.weight
            linear.weight = nn.Parameter(laid_out(weight, layout), requires_grad=weight.requires_grad)
    return model
