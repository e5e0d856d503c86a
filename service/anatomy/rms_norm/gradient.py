"""The gradient of RMS-norm, for the custom operator: autograd cannot see into its kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def save_inputs(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:  # noqa: ANN401 - torch's
    """Keep on `ctx` what `rms_norm_gradient` needs."""
    x, weight, epsilon = inputs
    ctx.save_for_backward(x, weight)
    ctx.epsilon = epsilon


def rms_norm_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401 - torch's
    """The gradients of x [..., width] and of weight [width], in their dtypes; epsilon has none.

    With r = rsqrt(mean(x²) + epsilon) per row and s = gradient · weight, that of x is
    r · s − x · r³ · mean(s · x), and that of the weight the sum over rows of gradient · x · r: the derivative
    of Zhang and Sennrich's definition (arXiv:1910.07467). Computed in float32, or in float64 where x is.
    """
    x, weight = ctx.saved_tensors
    wide = torch.promote_types(x.dtype, torch.float32)
    values, scaled = x.to(wide), gradient.to(wide) * weight.to(wide)
    scale = torch.rsqrt(values.square().mean(-1, keepdim=True) + ctx.epsilon)
    of_x = scale * scaled - values * scale.pow(3) * (scaled * values).mean(-1, keepdim=True)
    of_weight = (gradient.to(wide) * values * scale).reshape(-1, weight.shape[0]).sum(0)
    return of_x.to(x.dtype), of_weight.to(weight.dtype), None
