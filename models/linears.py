"""How the weights of linear layers lie in memory: the same for all modes, with the same results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

Layout = Literal["aten", "transposed"]
"""`aten`: rows are output features, as `nn.Linear` keeps them. `transposed`: rows are input features, so that
the product of a few tokens runs through the weights in the order in which they lie."""

Model = TypeVar("Model", bound=nn.Module)


def linears(model: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers of `model`."""
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
    """`model` itself, the weights of its linear layers now in `layout`.

    A weight that is tied to an embedding becomes a copy of its own where the layout changes: an embedding
    reads its table by rows.
    """
    if layout != layout_of(model):
        for linear in linears(model):
            weight = linear.weight
            linear.weight = nn.Parameter(laid_out(weight, layout), requires_grad=weight.requires_grad)
    return model
