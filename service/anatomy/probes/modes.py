"""Probes of the eager step: a synchronisation in its middle, and autocast's casts in every step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from models.transformer import Transformer
from service.anatomy.operators.calls import record
from service.anatomy.probes.blame import line_of, line_that_calls, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.compiling import compile_counting, compiled
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report
from service.step.buffers import allocate

_READ = "aten::_local_scalar_dense"
_ON_CUDA = "The host waited here until the device was done with all issued work, and issued the rest later."
_ON_CPU = (
    "On a CPU an operator has run when its call returns: there is nothing to wait for, and the read alone is "
    "timed. On CUDA the host would wait here until the device is done with all issued work."
)


def sync_point(probed: ProbedModel, report: Report) -> FaultComparison:
    """A check for NaN after a layer: the flag stays on the device, or is read at once."""
    kept, reading = probed.copy(), probed.copy()
    probed.layers(kept)[0].register_forward_hook(_keep_flag)
    probed.layers(reading)[0].register_forward_hook(_read_flag)
    without, with_fault = probed.served(kept), probed.served(reading)
    seen = records(probed, with_fault)
    reads = [sum(one.schema_name == _READ for one in side) for side in (records(probed, without), seen)]
    report("tracing the graph breaks of the compiled step")
    breaks = compile_counting(probed.served(compiled(reading, backend="eager"))).breaks
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="reads_by_host_per_step", before=reads[0], after=reads[1]),
        blame=line_of(_READ, seen),
        notes=[
            _ON_CUDA if probed.bench.device.type == "cuda" else _ON_CPU,
            f"Compiled, the same line causes {breaks} graph breaks: the value is unknown while tracing.",
        ],
    )


def _keep_flag(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute of layer
    layer.finite = _is_finite(output)


def _read_flag(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute of layer
    layer.finite = _is_finite(output).item()


def _is_finite(output: Any) -> Tensor:  # noqa: ANN401 - a tensor or a tuple
    return torch.isfinite(output[0] if isinstance(output, tuple) else output).all()


def autocast(probed: ProbedModel, report: Report) -> FaultComparison:
    """float32 weights under autocast, against weights cast to bfloat16 once."""
    low = torch.bfloat16
    device = probed.bench.device
    report("casting the weights once")
    lowered, full = (copy.deepcopy(probed.model).to(dtype) for dtype in (low, torch.float32))
    if isinstance(full, Transformer):
        full.rotary = full.rotary.to(low)  # so that keys come out in the dtype of the cache
    chunk = probed.bench.settings.prefill_chunk
    buffers = allocate(lowered, [probed.buffers.bucket], chunk, low)[probed.buffers.bucket]
    casting = torch.autocast(device.type, low)

    def once() -> object:
        with torch.inference_mode():
            return lowered(*buffers.arguments("decode"))

    def every_step() -> object:
        with torch.inference_mode(), casting:
            return full(*buffers.arguments("decode"))

    report("counting casts")
    before, after = weight_casts(probed, once), weight_casts(probed, every_step)
    return FaultComparison(
        without=TimedStep(once),
        with_fault=TimedStep(every_step),
        counter=Counter(name="weight_casts_per_step", before=len(before), after=len(after)),
        blame=line_that_calls(torch.autocast.__enter__.__code__, every_step),
        notes=[
            f"Both sides multiply in bfloat16. Under autocast a step writes {sum(after):,} bytes of cast "
            "weights: in inference mode autocast caches none of them, not even within one context.",
        ],
    )


def weight_casts(probed: ProbedModel, run: Callable[[], object]) -> list[int]:
    """Bytes of each copy in another dtype that a call of `run` makes of a weight matrix."""
    shapes = {tuple(weight.shape) for weight in probed.model.parameters() if weight.dim() > 1}
    step = record(probed.case(run), 1, operands=True)[0]
    # A cast is an inner call of the operator that needs it, unless that is composite.
    copied = [target for call in step.calls for target in call.copied]
    return [target.bytes for target in copied if target.shape in shapes]
