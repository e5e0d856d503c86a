"""A layer norm written out in operators: its kernels one by one, and compiled."""

from __future__ import annotations

import msgspec
import torch
from torch import Tensor

from service.anatomy.operators.compiled import graph_calls
from service.anatomy.operators.dispatch_keys import thread_keys
from service.anatomy.operators.records import OperatorRecorder
from service.anatomy.operators.sources import fused_kernels
from service.measure.cases import Bench
from service.protocol.modes import MODES

ROWS = 16
EPSILON = 1e-5


class LayerNormKernels(msgspec.Struct, frozen=True, kw_only=True):
    """`by_operator` counts the operators that compute (views do not), `compiled` the calls of kernels."""

    by_operator: int
    compiled: int


def written_out(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm (Ba, Kiros and Hinton, arXiv:1607.06450) of x [rows, width], in operators of ATen."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + EPSILON) * weight + bias


def count_kernels(bench: Bench) -> LayerNormKernels:
    """Count both in inference mode, on [ROWS, width of the model]."""
    width = bench.model.config.width
    shapes = (ROWS, width), (width,), (width,)
    x, weight, bias = (torch.ones(shape, device=bench.device) for shape in shapes)
    recorder = OperatorRecorder(thread_keys(MODES["inference_mode"], bench.device, bench.precision))
    with torch.inference_mode(), recorder:
        written_out(x, weight, bias)
    with torch.inference_mode(), graph_calls() as calls:
        torch.compile(written_out, fullgraph=True, dynamic=False)(x, weight, bias)
    kernels = [kernel for call in calls for kernel in fused_kernels(call.graph.source_code)]
    return LayerNormKernels(
        by_operator=sum(not one.is_view for one in recorder.seen),
        compiled=sum(kernel.calls for kernel in kernels),
    )
