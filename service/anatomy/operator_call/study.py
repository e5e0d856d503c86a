"""Study of one operator's call: its way through the dispatcher, and µs of each part of it by ablation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from service.anatomy.errors import StudyError
from service.anatomy.layers.ablations import ABLATIONS, ArmSeconds
from service.anatomy.layers.arms import State
from service.anatomy.layers.loops import load_loops
from service.anatomy.layers.operations import OPERATIONS, Operation
from service.anatomy.layers.setup import Setup
from service.anatomy.layers.study import OperationLayers, describe, time_operations
from service.anatomy.operator_call.dispatch import (
    COMPOSITE,
    KeySet,
    ThreadKeys,
    dispatched,
    key_set,
    keys_of,
    names,
    table,
)
from service.anatomy.operator_call.finding import (
    ArgumentTensor,
    DispatchedCall,
    OperatorCallArguments,
    OperatorCallFinding,
    Slice,
    VisitedKey,
)
from service.anatomy.profiler_note import attached_note
from service.anatomy.progress import Report
from service.measure.cases import Bench
from service.protocol.expressions import operator_named
from service.statistics.intervals import median_interval
from service.step.profiling import attach_profiler

__all__ = ["OperatorCallArguments", "OperatorCallFinding", "follow_call"]


@dataclass(frozen=True, slots=True)
class CallPath:
    """A call's tensors, the key set that it is dispatched on, and its entries into the dispatcher."""

    arguments: list[ArgumentTensor]
    thread: ThreadKeys
    keys: KeySet
    rows: KeySet
    calls: list[DispatchedCall]

    def visited(self) -> list[VisitedKey]:
        """The keys of all its entries that are known, in order."""
        return [key for call in self.calls for key in call.keys or ()]


def follow_call(bench: Bench, arguments: OperatorCallArguments, report: Report) -> OperatorCallFinding:
    """Time the call's parts in interleaved rounds, then follow it through the dispatcher, by the profiler.

    Raises StudyError for an unknown call, for autocast of bfloat16, and where there is no C++ compiler.
    """
    operation = _operation(arguments)
    loops = load_loops(bench.settings.cache_folder, report)
    state = State(arguments.grad, arguments.autocast)
    dtype = getattr(torch, arguments.dtype)
    setup = Setup(bench.device, dtype, state, loops, arguments.requires_grad)
    notes = attached_note()
    chosen = [(operation, arguments.size)]
    ((seconds, _),) = time_operations(setup, chosen, arguments.rounds, report)
    report(f"following {operation.statement}")
    path = _follow(setup, operation, arguments.size)
    found = _finding(arguments, path, seconds, describe(seconds, arguments.size))
    return msgspec.structs.replace(found, notes=[*notes, *found.notes])


def _operation(arguments: OperatorCallArguments) -> Operation:
    try:
        name = operator_named(arguments.expression)
    except ValueError as error:
        raise StudyError("invalid_request", str(error), "expression") from None
    if arguments.autocast and arguments.dtype != "float32":
        message = "autocast casts float32 tensors: take dtype float32, or leave autocast off"
        raise StudyError("invalid_request", message, "dtype")
    return OPERATIONS[name]


def _follow(setup: Setup, operation: Operation, size: int) -> CallPath:
    tensors = operation.tensors(size, size, setup.device, setup.dtype, setup.requires_grad)
    call: Callable[[], object] = eval(f"lambda: {operation.statement}", operation.names(tensors))
    attach_profiler(setup.device)
    with setup.state.entered(setup.device):
        thread = ThreadKeys.now()
        rows = key_set(keys_of(tensors), thread.included)
        keys = rows - thread.excluded
        calls = dispatched(call, keys)
    named = zip(operation.arguments, tensors, strict=True)
    return CallPath([_argument(*pair) for pair in named], thread, keys, rows, calls)


def _argument(name: str, tensor: Tensor) -> ArgumentTensor:
    return ArgumentTensor(
        name=name,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        requires_grad=tensor.requires_grad,
        keys=names(keys_of([tensor])),
    )


def _finding(
    arguments: OperatorCallArguments, path: CallPath, seconds: ArmSeconds, layers: OperationLayers
) -> OperatorCallFinding:
    return OperatorCallFinding(
        operator=layers.operation,
        expression=layers.statement,
        device=seconds.setup.device.type,
        threads=torch.get_num_threads(),
        size=arguments.size,
        dtype=arguments.dtype,
        grad=arguments.grad,
        autocast=arguments.autocast,
        requires_grad=arguments.requires_grad,
        rounds=arguments.rounds,
        arguments=path.arguments,
        included=names(path.thread.included),
        excluded=names(path.thread.excluded),
        key_set=names(path.keys),
        calls=path.calls,
        table=table(path.calls[0].operator, path.rows, path.keys),
        slices=list(_slices(seconds, layers, path.visited())),
        sum_microseconds=layers.sum_microseconds,
        whole_microseconds=layers.whole_microseconds,
        agreement=layers.agreement,
        agrees=layers.agrees,
        notes=list(_notes(arguments, path)),
    )


def _slices(seconds: ArmSeconds, layers: OperationLayers, visited: list[VisitedKey]) -> Iterator[Slice]:
    running = np.zeros_like(seconds["whole"])
    for ablation, layer in zip(ABLATIONS, layers.layers, strict=True):
        if layer.in_sum:
            running = running + ablation.seconds(seconds)
        yield Slice(
            name=layer.name,
            microseconds=layer.microseconds,
            running_microseconds=median_interval((running * 1e6).tolist()) if layer.in_sum else None,
            in_sum=layer.in_sum,
            keys=[key.key for key in visited if _slice_of(key) == layer.name],
            method=layer.experiment,
            why_not=layer.why_not,
        )


def _slice_of(visited: VisitedKey) -> str | None:
    """The slice that the kernel of a visited key belongs to; None for a composite one, which only calls."""
    if visited.key.startswith("Autocast"):
        return "autocast"
    if visited.kind == COMPOSITE:
        return None
    return "autograd" if visited.key.startswith(("Autograd", "ADInplaceOrView")) else "kernel"


def _notes(arguments: OperatorCallArguments, path: CallPath) -> Iterator[str]:
    visited = path.visited()
    if arguments.autocast and not any(_slice_of(key) == "autocast" for key in visited):
        yield "autocast is on, but has no rule for this operator here: its key falls through"
    if arguments.grad == "enabled" and not arguments.requires_grad:
        yield "no argument requires grad: autograd's part is that of its keys alone, and no node is recorded"
    if arguments.grad == "no_grad":
        yield "no_grad records no node, but the call visits the autograd keys as with grad mode on"
    if any(key.kind == COMPOSITE for key in (path.calls[0].keys or ())):
        yield f"{path.calls[0].operator} is composite: what it calls in turn is in the slice operator"
