"""The table of probes: what each runs, the cure it names, and the state of the compiler that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.anatomy.probes.autograd import inference_tensor_in_autograd, version_counter
from service.anatomy.probes.comparison import FaultComparison
from service.anatomy.probes.device_memory import fragmentation, pinned_copy
from service.anatomy.probes.dynamic import dynamic_shapes
from service.anatomy.probes.extension import cpp_extension
from service.anatomy.probes.graphs import graph_break
from service.anatomy.probes.guards import grad_mode_mismatch, recompile, thread_change
from service.anatomy.probes.kept import results_kept
from service.anatomy.probes.layouts import channels_last
from service.anatomy.probes.memory import allocator_churn, hidden_copy
from service.anatomy.probes.modes import autocast, sync_point
from service.anatomy.probes.operator import custom_op
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.probes.shapes import LIMIT, unbucketed_shape
from service.anatomy.probes.views import view_keeps_storage
from service.anatomy.progress import Report
from service.protocol.messages import Phase


@dataclass(frozen=True, slots=True)
class Probe:
    """A row of the table. `resets`: it leaves compiled entries on the model's own code."""

    run: Callable[[ProbedModel, Report], FaultComparison]
    cure: str
    phase: Phase = "decode"
    resets: bool = False
    recompile_limit: int = 8


TABLE: dict[str, Probe] = {
    "graph-break": Probe(
        graph_break, resets=True,
        cure="Take the call out of the step; with `fullgraph=True` a break is an error that names its line.",
    ),
    "recompile": Probe(
        recompile, cure="Keep the number out of the step, or in a tensor: its value is then no guard."
    ),
    "unbucketed-shape": Probe(
        unbucketed_shape, phase="prefill", recompile_limit=LIMIT,
        cure="Pad every input to one of a few fixed sizes, and compile each of them before serving.",
    ),
    "sync-point": Probe(
        sync_point, resets=True,
        cure="Leave the value on the device, and read it after the step, with what goes to the host anyway.",
    ),
    "hidden-copy": Probe(
        hidden_copy, phase="prefill",
        cure="Keep one layout through the step, or copy once where it can be seen, with `.contiguous()`.",
    ),
    "allocator-churn": Probe(
        allocator_churn,
        cure="Allocate the buffer once, beside the cache, and write into it in every step.",
    ),
    "grad-mode-mismatch": Probe(
        grad_mode_mismatch, cure="Warm up in exactly the grad mode that serves, and enter it in one place."
    ),
    "thread-change": Probe(
        thread_change, cure="Set the number of threads once, before the first compilation, and never again."
    ),
    "custom-op": Probe(
        custom_op, resets=True,
        cure="Register it (`torch.library.custom_op`) with a fake, and with a gradient where it is trained.",
    ),
    "autocast": Probe(
        autocast, cure="Cast the weights once (`--dtype bfloat16`): autocast is for training in float32."
    ),
    "view-keeps-storage": Probe(
        view_keeps_storage, phase="prefill",
        cure="Keep a clone of what is to last, and let the large tensor go.",
    ),
    "results-kept": Probe(
        results_kept, phase="prefill",
        cure="Serve without a tape, and keep of activations what is needed, in a buffer that stays.",
    ),
    "version-counter": Probe(
        version_counter,
        cure="Write out of place what autograd has saved, or change it before it is used.",
    ),
    "inference-tensor-in-autograd": Probe(
        inference_tensor_in_autograd,
        cure="Clone it outside inference mode, or make it under `no_grad` where it is to be trained on.",
    ),
    "channels-last": Probe(
        channels_last,
        cure="Convert model and input once, with `.to(memory_format=torch.channels_last)`: results keep it.",
    ),
    "dynamic-shapes": Probe(
        dynamic_shapes, phase="prefill",
        cure="Mark it before the first call, `torch._dynamo.mark_dynamic(tensor, 1)`, or pad to buckets.",
    ),
    "cpp-extension": Probe(
        cpp_extension,
        cure="Write an operator that is called often in C++ (`TORCH_LIBRARY`), or leave it to the compiler.",
    ),
    "fragmentation": Probe(
        fragmentation,
        cure="Allocate what lasts first, or set `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.",
    ),
    "pinned-copy": Probe(
        pinned_copy,
        cure="Copy through one buffer that is kept and pinned, `torch.empty(…, pin_memory=True)`.",
    ),
}  # fmt: skip
"""Every probe, by the names in `service.protocol.probes`."""
