"""Study of one operator's call: its way through the dispatcher, and µs of each part of it by ablation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import torch

from service.anatomy.common import Report, StudyError, attached_note
from service.anatomy.layers.study import (
    ABLATIONS,
    Agreeing,
    Layer,
    OperationLayers,
    VariantSeconds,
    describe,
    time_operations,
)
from service.anatomy.layers.variants import OPERATIONS, Operation, Setup, State, load_loops
from service.anatomy.operators.calls import (
    MISSING,
    KeySet,
    ThreadKeys,
    dispatch_entries,
    is_operator,
    key_set,
    keys_in_order,
    keys_of,
    profiled_events,
)
from service.measure.cases import AnyBench
from service.modes import GradMode
from service.statistics.intervals import Interval, median_interval
from service.step.profiling import attach_profiler
from service.study_names import operator_named


class OperatorCallArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of `OPERATOR_CALLS` on tensors of [size, size], in a state of torch; autocast is to bfloat16."""

    expression: str = "torch.add(x, y)"
    size: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    grad: GradMode = "enabled"
    autocast: bool = False
    requires_grad: bool = True
    rounds: Annotated[int, msgspec.Meta(ge=6, le=500)] = 15


class DispatchedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatch key whose kernel the call ran. `kind` is how torch came to that kernel, in its own words:
    `kernel`, `autograd kernel`, `default backend kernel` (of every backend), `backend fallback` or `math
    kernel` (composite: it only calls other operators).
    """

    key: str
    kind: str


class DispatchedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One entry into the dispatcher, in order; `depth` counts the calls around it, 0 for the user's own.

    `keys` are those whose kernels it runs, first to last; None inside a backend's kernel: not known there.
    """

    operator: str
    depth: int
    keys: list[DispatchedKey] | None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the operator's dispatch table, as torch computes it, for a key of its tensors or the thread.

    `kind` None: the key has no kernel or falls through to the next one. `source`: the file of torch's own
    build that registered the kernel, and its line. `in_key_set`: the call is dispatched on this key too.
    """

    key: str
    kind: str | None
    source: str | None
    in_key_set: bool


class Slice(Layer, frozen=True, kw_only=True):
    """A layer of the call's time, in order, and the `keys` whose kernels it is the time of.

    `running_microseconds` is the sum up to here, None where this layer is not in it.
    """

    running_microseconds: Interval | None
    keys: list[str]


class OperatorCallFinding(Agreeing, frozen=True, kw_only=True):
    """One operator's call: the keys that it passes, and what each part of it takes.

    `key_set`, highest priority first, is what the user's call is dispatched on: the keys of its tensors and
    those that the thread's state adds, less those that it takes away. `calls[0]` is that call; those after it
    are what its kernels call.
    """

    operator: str
    expression: str
    device: str
    threads: int
    size: int
    dtype: str
    grad: GradMode
    autocast: bool
    requires_grad: bool
    rounds: int
    key_set: list[str]
    calls: list[DispatchedCall]
    table: list[TableRow]
    slices: list[Slice]
    notes: list[str]


def follow_call(bench: AnyBench, arguments: OperatorCallArguments, report: Report) -> OperatorCallFinding:
    """Time the call's parts in interleaved rounds, then follow it through the dispatcher, by the profiler.

    Raises StudyError for an unknown call, for autocast of bfloat16, and without a C++ compiler.
    """
    operation = _operation(arguments)
    loops = load_loops(bench.settings.cache_folder, report)
    state = State(arguments.grad, arguments.autocast)
    dtype = getattr(torch, arguments.dtype)
    setup = Setup(bench.device, dtype, state, loops, arguments.requires_grad)
    notes = attached_note()
    ((seconds, size),) = time_operations(setup, [(operation, arguments.size)], arguments.rounds, report)
    layers = describe(seconds, size)
    report(f"following {operation.statement}")
    tensors = operation.tensors(size, size, setup.device, setup.dtype, setup.requires_grad)
    call: Callable[[], object] = eval(f"lambda: {operation.statement}", operation.names(tensors))
    attach_profiler(setup.device)
    with state.entered(setup.device):
        thread = ThreadKeys.now()
        rows = key_set(keys_of(tensors), thread.included)
        keys = rows - thread.excluded
        calls = dispatched(call, keys)
    path = [key for each in calls for key in each.keys or ()]
    return OperatorCallFinding(
        **msgspec.structs.asdict(arguments) | {"expression": layers.statement},
        **{name: getattr(layers, name) for name in Agreeing.__struct_fields__},
        operator=layers.operation,
        device=setup.device.type,
        threads=torch.get_num_threads(),
        key_set=_names(keys),
        calls=calls,
        table=dispatch_rows(calls[0].operator, rows, keys),
        slices=list(_slices(seconds, layers, path)),
        notes=[*notes, *_notes(arguments, calls[0], path)],
    )


def _operation(arguments: OperatorCallArguments) -> Operation:
    try:
        name = operator_named(arguments.expression)
    except ValueError as error:
        raise StudyError("invalid_request", str(error), "expression") from None
    if arguments.autocast and arguments.dtype != "float32":
        message = "autocast casts float32 tensors: take dtype float32, or leave autocast off"
        raise StudyError("invalid_request", message, "dtype")
    return OPERATIONS[name]


def _slices(seconds: VariantSeconds, layers: OperationLayers, path: list[DispatchedKey]) -> Iterator[Slice]:
    running = np.zeros_like(seconds["whole"])
    for ablation, layer in zip(ABLATIONS, layers.layers, strict=True):
        if layer.in_sum:
            running = running + ablation.seconds(seconds)
        yield Slice(
            **msgspec.structs.asdict(layer),
            running_microseconds=median_interval((running * 1e6).tolist()) if layer.in_sum else None,
            keys=[key.key for key in path if _slice_of(key) == layer.name],
        )


def _slice_of(key: DispatchedKey) -> str | None:
    """The slice that the kernel of `key` belongs to; None for a composite one, which only calls others."""
    if key.key.startswith("Autocast"):
        return "autocast"
    if key.kind == COMPOSITE:
        return None
    return "autograd" if key.key.startswith(("Autograd", "ADInplaceOrView")) else "kernel"


def _notes(
    arguments: OperatorCallArguments, first: DispatchedCall, path: list[DispatchedKey]
) -> Iterator[str]:
    if arguments.autocast and not any(_slice_of(key) == "autocast" for key in path):
        yield "autocast is on, but has no rule for this operator here: its key falls through"
    if arguments.grad == "enabled" and not arguments.requires_grad:
        yield "no argument requires grad: autograd's part is that of its keys alone, and no node is recorded"
    if arguments.grad == "no_grad":
        yield "no_grad records no node, but the call passes the autograd keys as with grad mode on"
    if any(key.kind == COMPOSITE for key in first.keys or ()):
        yield f"{first.operator} is composite: what it calls in turn is in the slice operator"


COMPOSITE = "math kernel"
"""How torch calls a kernel that only calls other operators (CompositeImplicitAutograd)."""

_ABOVE_BACKENDS = ("Autocast", "Autograd", "ADInplaceOrView", "BackendSelect")


def _names(keys: KeySet) -> list[str]:
    return [name for name, _ in keys_in_order(keys)]


def dispatch_rows(schema_name: str, rows: KeySet, dispatched_on: KeySet) -> list[TableRow]:
    present = set(_names(dispatched_on))
    entries = dispatch_entries(schema_name)
    found = {name: entries.get(name, MISSING) for name in _names(rows)}
    return [
        TableRow(
            key=name, kind=entry.kind if entry.runs else None, source=entry.source, in_key_set=name in present
        )
        for name, entry in found.items()
    ]


def dispatch_path(schema_name: str, keys: KeySet) -> tuple[list[DispatchedKey], KeySet | None]:
    """The keys whose kernels a call on `keys` runs, and those that are excluded from the calls it makes.

    Autocast's kernel calls the operator again from the top without its own key, a composite one calls others
    with all. None where a backend's kernel is the last: its calls are below autograd, on its own tensors.
    """
    path = []
    entries = dispatch_entries(schema_name)
    for name, key in keys_in_order(keys):
        entry = entries.get(name, MISSING)
        if not entry.runs:
            continue
        path.append(DispatchedKey(key=name, kind=entry.kind))
        if name.startswith("Autocast"):
            return path, torch._C.DispatchKeySet(key)
        if entry.kind == COMPOSITE:
            return path, key_set()
        if not name.startswith(_ABOVE_BACKENDS):
            break
    return path, None


def dispatched(call: Callable[[], object], keys: KeySet) -> list[DispatchedCall]:
    """The entries into the dispatcher that `call` makes, by torch's profiler; `keys` are those of the first.

    Runs it twice: autocast keeps the casts of weights from the first.
    """
    call()
    (mark,), overloads = profiled_events(call, "launchbound: the call")
    return list(_entries(mark.children, overloads, keys, 0))


def _entries(
    events: list[Any], overloads: dict[int, str], keys: KeySet | None, depth: int
) -> Iterator[DispatchedCall]:
    for event in events:
        if not is_operator(event):
            yield from _entries(event.children, overloads, keys, depth)
            continue
        overload = overloads.get(event.correlation_id, "")
        schema_name = f"{event.name}.{overload}" if overload else event.name
        path, excludes = dispatch_path(schema_name, keys) if keys is not None else (None, None)
        yield DispatchedCall(operator=schema_name, depth=depth, keys=path)
        below = None if excludes is None else keys - excludes
        yield from _entries(event.children, overloads, below, depth + 1)
