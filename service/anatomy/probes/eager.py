"""Probes of the eager step: a sync point, autocast."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from models.transformer import Transformer
from service.anatomy.common import Report
from service.anatomy.operators.calls import OperatorRecorder, thread_keys
from service.anatomy.probes.faults import (
    Counter,
    FaultComparison,
    ProbedModel,
    TimedStep,
    compile_counting,
    compiled,
    copied_tensors,
    hidden_of,
    in_inference,
)
from service.modes import MODES
from service.step.buffers import allocate

_READ = "aten::_local_scalar_dense"
_WAITING = {
    "cuda": "The host waited here until the device was done with all issued work, and issued the rest later.",
    "cpu": "On a CPU an operator has run when its call returns: the read alone is timed, and nothing waits.",
}


def sync_point(probed: ProbedModel, report: Report) -> FaultComparison:
    """A check for NaN after a layer: the flag stays on the device, or is read at once."""
    kept, reading = probed.copy(), probed.copy()
    probed.layers(kept)[0].register_forward_hook(_keep_flag)
    probed.layers(reading)[0].register_forward_hook(_read_flag)
    without, with_fault = probed.served(kept), probed.served(reading)
    before, after = (reads_by_host(probed, run) for run in (without, with_fault))
    report("tracing the graph breaks of the compiled step")
    breaks = compile_counting(probed.served(compiled(reading, backend="eager"))).breaks
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter("reads_by_host_per_step", before, after),
        fault=_read_flag,
        notes=[
            _WAITING[probed.bench.device.type],
            f"Compiled, the same line causes {breaks} graph breaks: the value is unknown while tracing.",
        ],
    )


def reads_by_host(probed: ProbedModel, run: Callable[[], object]) -> int:
    keys = thread_keys(MODES["inference_mode"], probed.bench.device, probed.bench.precision)
    with OperatorRecorder(keys) as recorder:
        run()
    return sum(one.schema_name == _READ for one in recorder.seen)


def _keep_flag(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute of layer
    layer.finite = torch.isfinite(hidden_of(output)).all()


def _read_flag(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute of layer
    layer.finite = torch.isfinite(hidden_of(output)).all().item()  # the fault


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

    def under_autocast() -> object:
        with casting:  # the fault
            return full(*buffers.arguments("decode"))

    once = in_inference(lambda: lowered(*buffers.arguments("decode")))
    every_step = in_inference(under_autocast)
    report("counting casts")
    before, after = weight_casts(probed, once), weight_casts(probed, every_step)
    return FaultComparison(
        without=TimedStep(once),
        with_fault=TimedStep(every_step),
        counter=Counter("weight_casts_per_step", len(before), len(after)),
        fault=under_autocast,
        notes=[
            f"Both sides multiply in bfloat16. Under autocast a step writes {sum(after):,} bytes of cast "
            "weights: in inference mode autocast caches none of them, not even within one context."
        ],
    )


def weight_casts(probed: ProbedModel, run: Callable[[], object]) -> list[int]:
    """Bytes of each copy in another dtype that a call of `run` makes of a weight matrix."""
    shapes = {tuple(weight.shape) for weight in probed.model.parameters() if weight.dim() > 1}
    return [target.bytes for target in copied_tensors(probed, run) if target.shape in shapes]
