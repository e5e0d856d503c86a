"""Probes of memory: copies that no line calls for, and a buffer allocated in every step."""

from __future__ import annotations

import resource
from collections import Counter as Counts
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from service.anatomy.errors import StudyError
from service.anatomy.operators.calls import record
from service.anatomy.operators.records import OperatorRecord
from service.anatomy.probes.blame import line_of, records
from service.anatomy.probes.comparison import Counter, FaultComparison, TimedStep
from service.anatomy.probes.probed_model import ProbedModel
from service.anatomy.progress import Report
from service.step.process_state import mapped_blocks

SCRATCH_BYTES = tuple(size << 20 for size in (33, 65, 129, 257, 513))
"""The smallest that is mapped by the system each time is used. glibc's mmap threshold is at most 32 MiB, but
a larger free gap between blocks in use serves a larger buffer too."""

_ON_CUDA = (
    "`empty_cache` returns the memory to the driver, which unmaps it and maps it again in the next step. "
    "Without that line the caching allocator would have kept it."
)
_ON_CPU = (
    "By default so large a block is unmapped when freed, and each of its pages faults when it is next "
    "touched. The C library keeps a smaller one, which costs almost nothing; the engine has it keep all."
)
_STEPS_COUNTED = 5
_COPYING = ("aten::clone", "aten::_to_copy", "aten::copy_")


def hidden_copy(probed: ProbedModel, report: Report) -> FaultComparison:
    """The layers' outputs in features-first layout, returned as a view."""
    faulty = probed.copy()
    for layer in probed.layers(faulty):
        layer.register_forward_hook(_features_first)
    without, with_fault = probed.served(probed.model, "prefill"), probed.served(faulty, "prefill")
    report("counting copies")
    before, before_bytes = copies(probed, without)
    after, after_bytes = copies(probed, with_fault)
    seen = records(probed, with_fault)
    blame = line_of("aten::clone", seen)
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name="copies_per_step", before=before, after=after),
        blame=blame,
        notes=[
            f"A step copied {before_bytes:,} bytes without and {after_bytes:,} bytes with the fault.",
            *_further_copies(records(probed, without), seen, blame),
        ],
    )


def _features_first(layer: object, inputs: object, output: Any) -> Any:  # noqa: ANN401 - a tensor or a tuple
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    turned = hidden.transpose(-1, -2)
    copied = turned.flatten().view(turned.shape).transpose(-1, -2)
    return (copied, *output[1:]) if isinstance(output, tuple) else copied


def _further_copies(before: list[OperatorRecord], after: list[OperatorRecord], blame: str) -> list[str]:
    """A note with other lines that copy only in the step with the fault."""
    lines = [
        Counts(str(one.line) for one in seen if one.line and one.schema_name in _COPYING)
        for seen in (before, after)
    ]
    further = sorted(line for line in lines[1] - lines[0] if line != blame)
    return [f"With this layout these lines copy as well: {', '.join(further)}."] if further else []


def copies(probed: ProbedModel, run: Callable[[], object]) -> tuple[int, int]:
    """Number and bytes of the tensors that a call of `run` copies, in operators and within their kernels."""
    step = record(probed.case(run), 1, operands=True)[0]
    copied = [target for call in step.calls for target in call.copied]
    return len(copied), sum(target.bytes for target in copied)


def allocator_churn(probed: ProbedModel, report: Report) -> FaultComparison:
    """A scratch buffer allocated in every step, against one that is kept."""
    kept, churning = probed.copy(), probed.copy()
    device = probed.bench.device
    name, count = _requests(device)
    size = SCRATCH_BYTES[0] if device.type == "cuda" else _unkept_size(count)
    scratch = torch.empty(size, dtype=torch.uint8, device=device)
    probed.layers(kept)[0].register_forward_hook(lambda *_: _clear(scratch))
    probed.layers(churning)[0].register_forward_hook(lambda *_: _scratch_each_step(size, device))
    without, with_fault = probed.served(kept), probed.served(churning)
    report("counting allocations from the system")
    return FaultComparison(
        without=TimedStep(without),
        with_fault=TimedStep(with_fault),
        counter=Counter(name=name, before=_per_step(count, without), after=_per_step(count, with_fault)),
        blame=line_of("aten::empty.memory_format", records(probed, with_fault)),
        notes=[
            f"Both steps clear {size >> 20} MiB in their first layer; only its origin differs.",
            _ON_CUDA if scratch.is_cuda else _ON_CPU,
        ],
    )


def _scratch_each_step(size: int, device: torch.device) -> None:
    if device.type == "cuda":
        _clear(torch.empty(size, dtype=torch.uint8, device=device))
        torch.cuda.empty_cache()
        return
    with mapped_blocks():
        _clear(torch.empty(size, dtype=torch.uint8, device=device))


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


def _clear(scratch: Tensor) -> None:
    scratch.zero_()


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
