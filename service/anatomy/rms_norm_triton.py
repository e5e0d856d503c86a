"""The RMS-norm as one Triton kernel, a program per row. Imported on CUDA only."""

# mypy: disable-error-code="import-not-found,import-untyped,untyped-decorator,no-untyped-def"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(x, weight, out, width, epsilon, BLOCK: tl.constexpr):  # noqa: ANN001, ANN202 - Triton's own types
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    inside = places < width
    values = tl.load(x + row * width + places, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / width + epsilon)
    weights = tl.load(weight + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + places, (values * scale * weights).to(out.dtype.element_ty), mask=inside)


def launch(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Normalise `x` [..., width] on CUDA, with float32 inside; the result is contiguous, of x's dtype."""
    rows = x.contiguous().view(-1, x.shape[-1])
    width = x.shape[-1]
    out = torch.empty_like(rows)
    if out.numel():
        _rms_norm[(rows.shape[0],)](
            rows, weight.contiguous(), out, width, epsilon, BLOCK=triton.next_power_of_2(width)
        )
    return out.view(x.shape)
