"""Probes of the eager step: a sync point, autocast, a hidden copy, churn of memory."""

from __future__ import annotations

import resource
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from service.anatomy.common import Report, StudyError
from service.anatomy.operators.calls import OperatorRecorder, thread_keys
from service.anatomy.probes.faults import (
    Counter,
    FaultComparison,
    TimedStep,
    compile_counting,
    compiled,
    hidden_of,
)
from service.anatomy.probes.probed import Probed, in_inference
from service.modes import MODES
from service.step.process_state import mapped_blocks

_WAITING = {
    "cuda": "The host waited here until the device was done with all issued work, and issued the rest later.",
    "cpu": "On a CPU an operator has run when its call returns: the read alone is timed, and nothing waits.",
}


def sync_point(probed: Probed, report: Report) -> FaultComparison:
    """A check for NaN after a layer: the flag stays on the device, or is read at once."""
    kept, reading = probed.copy(), probed.copy()
    probed.parts(kept)[0].register_forward_hook(_keep_flag)
    probed.parts(reading)[0].register_forward_hook(_read_flag)
    without, with_fault = (probed.served(probed.step(model)) for model in (kept, reading))
    before, after = (reads_by_host(probed, run) for run in (without, with_fault))
    report("tracing the graph breaks of the compiled step")
    breaks = compile_counting(probed.served(compiled(probed.step(reading), backend="eager"))).breaks
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter("reads_by_host_per_step", before, after),
        fault=_read_flag,
        notes=[
            _WAITING[probed.bench.device.type],
            f"Compiled, the same line causes {breaks} graph breaks: the value is unknown while tracing.",
            *probed.places(),
        ],
    )


def reads_by_host(probed: Probed, run: Callable[[], object]) -> int:
    keys = thread_keys(MODES["inference_mode"], probed.bench.device, probed.bench.precision)
    with OperatorRecorder(keys) as recorder:
        run()
    return sum(one.schema_name == "aten::_local_scalar_dense" for one in recorder.seen)


def _keep_flag(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute of layer
    layer.finite = torch.isfinite(hidden_of(output)).all()


def _read_flag(layer: Any, inputs: object, output: Any) -> None:  # noqa: ANN401 - sets a new attribute of layer
    layer.finite = torch.isfinite(hidden_of(output)).all().item()  # the fault


def autocast(probed: Probed, report: Report) -> FaultComparison:
    """float32 weights under autocast, against weights cast to bfloat16 once."""
    low = torch.bfloat16
    report("casting the weights once")
    lowered, full = (probed.cast(dtype, low) for dtype in (low, torch.float32))
    casting = torch.autocast(probed.bench.device.type, low)

    def under_autocast() -> object:
        with casting:  # the fault
            return full()

    once, every_step = in_inference(lowered), in_inference(under_autocast)
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


def weight_casts(probed: Probed, run: Callable[[], object]) -> list[int]:
    """Bytes of each copy in another dtype that a call of `run` makes of a weight matrix."""
    shapes = {tuple(weight.shape) for weight in probed.model.parameters() if weight.dim() > 1}
    return [target.bytes for call in probed.calls(run) for target in call.cast if target.shape in shapes]


SCRATCH_BYTES = tuple(size << 20 for size in (33, 65, 129, 257, 513))
"""The smallest that is mapped by the system each time is used. glibc's mmap threshold is at most 32 MiB, but
a larger free gap between blocks in use serves a larger buffer too."""

_CHURN = {
    "cuda": "`empty_cache` returns the memory to the driver, which unmaps it and maps it again in the next "
    "step. Without that line the caching allocator would have kept it.",
    "cpu": "By default so large a block is unmapped when freed, and each of its pages faults when it is next "
    "touched. The C library keeps a smaller one, which costs almost nothing; the engine has it keep all.",
}
_STEPS_COUNTED = 5


def hidden_copy(probed: Probed, report: Report) -> FaultComparison:
    """The layers' outputs in features-first layout, returned as a view."""
    faulty = probed.copy()
    for part in probed.parts(faulty):
        part.register_forward_hook(_features_first)
    without, with_fault = (probed.served(probed.step(one), "prefill") for one in (probed.model, faulty))
    report("counting copies")
    before, after = (
        [target.bytes for call in probed.calls(run) for target in call.copied]
        for run in (without, with_fault)
    )
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter("copies_per_step", len(before), len(after)),
        fault=_features_first,
        notes=[f"A step copied {sum(before):,} bytes without and {sum(after):,} bytes with the fault."],
    )


def copied_bytes(probed: Probed, run: Callable[[], object]) -> list[int]:
    return [target.bytes for call in probed.calls(run) for target in call.copied]


def _features_first(layer: object, inputs: object, output: Any) -> Any:  # noqa: ANN401 - a tensor or a tuple
    turned = hidden_of(output).transpose(-1, -2)
    copied = turned.flatten().view(turned.shape).transpose(-1, -2)  # the fault
    return (copied, *output[1:]) if isinstance(output, tuple) else copied


def allocator_churn(probed: Probed, report: Report) -> FaultComparison:
    """A scratch buffer allocated in every step, against one that is kept."""
    kept, churning = probed.copy(), probed.copy()
    device = probed.bench.device
    name, count = _requests(device)
    size = SCRATCH_BYTES[0] if device.type == "cuda" else _unkept_size(count)
    scratch = torch.empty(size, dtype=torch.uint8, device=device)

    def clear(*_: object) -> None:  # what a hook returns would replace the layer's output
        scratch.zero_()

    probed.parts(kept)[0].register_forward_hook(clear)
    probed.parts(churning)[0].register_forward_hook(lambda *_: _scratch_each_step(size, device))
    without, with_fault = (probed.served(probed.step(model)) for model in (kept, churning))
    report("counting allocations from the system")
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name, _per_step(count, without), _per_step(count, with_fault)),
        fault=_scratch_each_step,
        notes=[
            f"Both steps clear {size >> 20} MiB in their first layer; only its origin differs.",
            _CHURN[device.type],
            *probed.places(),
        ],
    )


def _scratch_each_step(size: int, device: torch.device) -> None:
    on_cuda = device.type == "cuda"
    with nullcontext() if on_cuda else mapped_blocks():
        torch.empty(size, dtype=torch.uint8, device=device).zero_()  # the fault
    if on_cuda:
        torch.cuda.empty_cache()


def _unkept_size(count: Callable[[], int]) -> int:
    """The smallest size whose buffers the C library returns to the system, by their page faults.

    Raises StudyError where the process has kept enough memory for all of them.
    """
    cpu = torch.device("cpu")
    for size in SCRATCH_BYTES:
        if _per_step(count, partial(_scratch_each_step, size, cpu)) >= 1:
            return size
    message = f"this process's allocator serves {SCRATCH_BYTES[-1] >> 20} MiB from memory that it has kept"
    raise StudyError("unsupported_here", f"{message}: run `launchbound probe allocator-churn` by itself")


def _requests(device: torch.device) -> tuple[str, Callable[[], int]]:
    """Name and counter of memory taken from the system: page faults, or the driver's allocations."""
    if device.type == "cuda":
        return "device_allocations_per_step", lambda: int(torch.cuda.memory_stats()["num_device_alloc"])
    return "page_faults_per_step", lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _per_step(count: Callable[[], int], run: Callable[[], object]) -> float:
    run()
    before = count()
    for _ in range(_STEPS_COUNTED):
        run()
    return (count() - before) / _STEPS_COUNTED
