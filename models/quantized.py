"""Linear layers whose weights are kept as int8, a scale per output feature."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

LARGEST = 127
"""Of the integers that weights are rounded to; they are symmetrical around 0."""

Model = TypeVar("Model", bound=nn.Module)


class Int8Linear(nn.Module):
    """A linear layer without bias: `weight` int8 [out, in], `scales` [out] of the activations' dtype.

    Row i of the weights is `weight[i] · scales[i]`, and a scale is the largest magnitude of its row ÷ LARGEST
    (Dettmers et al., arXiv:2208.07339, section 2, by rows). The product is ATen's, which AOTInductor replaces
    by a kernel of its own where activations are bfloat16.
    """

    weight: Tensor
    scales: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        """Raises ValueError where `linear` has a bias."""
        super().__init__()
        bias: Tensor | None = linear.bias
        if bias is not None:
            raise ValueError("int8 weights are for linear layers without a bias")
        rows = linear.weight.detach().float()
        # Of a row of zeros any scale will do, but 0 / 0 is no number.
        scales = rows.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / LARGEST
        self.register_buffer("weight", (rows / scales.unsqueeze(1)).round().to(torch.int8))
        self.register_buffer("scales", scales.to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.aten._weight_int8pack_mm(x, self.weight, self.scales)
        return product


def quantize(model: Model) -> Model:
    """`model` itself, each linear layer now an Int8Linear. Embeddings stay as they are, tied ones too.

    Raises ValueError for a linear layer with a bias.
    """
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, Int8Linear(child))
    return model
