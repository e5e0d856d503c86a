"""Reads a tape: forward operators, grad_fn nodes in backward order, and the tensors that they saved."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd.graph import Node

from service.anatomy.common import StudyError
from service.anatomy.operators.calls import CallsSeen, is_view
from service.measure.cases import Bench, Case
from service.modes import MODES
from service.step.buffers import Buffers
from service.step.profiling import chrome_events, new_session

ACCUMULATE = "AccumulateGrad"


class ForwardOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator below autograd, its grad_fn node, and the memory that its results allocated."""

    operator: str
    shape: tuple[int, ...]
    new_bytes: int
    is_view: bool
    node: int | None


class BackwardNode(msgspec.Struct, frozen=True, kw_only=True):
    """One grad_fn node, by its place in the engine's order, and the nodes that receive its gradients."""

    index: int
    name: str
    feeds: tuple[int, ...]
    saved: tuple[SavedTensor, ...]


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that gets a `.grad`, accumulated by `node`; an `input` stands for an activation."""

    name: str
    kind: OwnerKind
    shape: tuple[int, ...]
    grad_bytes: int
    node: int


class ForwardRecorder(CallsSeen):
    """Records every operator with the sequence number of the node made for it, -1 where none was."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[ForwardOperator, int]] = []
        self._newest = _newest_node()

    def see(self, func: OpOverload, given: list[Tensor], made: list[Tensor]) -> None:
        """Record the call; autograd makes an operator's node before it calls the operator."""
        before, self._newest = self._newest, _newest_node()
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        new = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in made}
        operator = ForwardOperator(
            operator=str(func),
            shape=tuple(made[0].shape) if made else (),
            new_bytes=sum(size for address, size in new.items() if address not in known),
            is_view=is_view(func, given, made),
            node=None,
        )
        self.seen.append((operator, self._newest if self._newest != before else -1))


class Tape(NamedTuple):
    forward: list[ForwardOperator]
    nodes: list[BackwardNode]
    leaves: list[Leaf]


def record(run: Callable[[], Tensor], storages: Storages) -> Tape:
    """The tape of `run`'s result, with grad mode on."""
    with torch.enable_grad(), ForwardRecorder() as recorder:
        result = run()
    assert result.grad_fn is not None
    numbers = {node: index for index, node in enumerate(execution_order(result.grad_fn))}
    by_sequence = {node._sequence_nr(): index for node, index in numbers.items()}
    return Tape(
        forward=[
            msgspec.structs.replace(operator, node=by_sequence.get(sequence))
            for operator, sequence in recorder.seen
        ],
        nodes=[
            BackwardNode(
                index=index,
                name=short_name(node),
                feeds=tuple(numbers[to] for to, _ in node.next_functions if to is not None),
                saved=tuple(storages.saved(name, tensor) for name, tensor in saved_by(node)),
            )
            for node, index in numbers.items()
        ],
        leaves=[
            _leaf(node.variable, index, storages)  # type: ignore[attr-defined]
            for node, index in numbers.items()
            if ACCUMULATE in node.name()
        ],
    )


def _leaf(leaf: Tensor, node: int, storages: Storages) -> Leaf:
    kind, name = storages.owner(leaf)
    return Leaf(name=name or "unnamed", kind=kind, shape=tuple(leaf.shape), grad_bytes=leaf.nbytes, node=node)


def saved_during(run: Callable[[], object], storages: Storages) -> list[SavedTensor]:
    """Every tensor that autograd saves while `run` runs, by saved-tensor hooks, whether or not it is kept."""
    seen: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        seen.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    described = [storages.saved("saved", tensor) for tensor in seen]
    del result
    return described


def _newest_node() -> int:
    return int(torch._C._autograd._get_sequence_nr()) - 1


SAVED_PREFIX = "_saved_"


def execution_order(root: Node) -> list[Node]:
    """Every node below `root`, in the order of autograd's engine: of the ready ones the newest.

    AccumulateGrad nodes have the largest sequence number, so they run as soon as they are ready.
    """
    waiting: dict[Node, int] = {root: 0}
    stack = [root]
    while stack:
        for to, _ in stack.pop().next_functions:
            if to is None:
                continue
            if to not in waiting:
                waiting[to] = 0
                stack.append(to)
            waiting[to] += 1
    ready = [(-root._sequence_nr(), 0, root)]
    order = []
    tie = 0
    while ready:
        node = heapq.heappop(ready)[2]
        order.append(node)
        for to, _ in node.next_functions:
            if to is not None:
                waiting[to] -= 1
                if not waiting[to]:
                    tie += 1
                    heapq.heappush(ready, (-to._sequence_nr(), tie, to))
    return order


def saved_by(node: Node) -> Iterator[tuple[str, Tensor]]:
    """Names and tensors that `node` saved. Raises StudyError for one that was changed in place since."""
    try:
        for attribute in dir(node):
            if attribute.startswith(SAVED_PREFIX):
                value = getattr(node, attribute)
                name = attribute.removeprefix(SAVED_PREFIX)
                if isinstance(value, Tensor):
                    yield name, value
                elif isinstance(value, tuple):
                    yield from ((f"{name}[{i}]", t) for i, t in enumerate(value) if isinstance(t, Tensor))
        # A torch.autograd.Function written in Python has its saved tensors in one attribute.
        for number, tensor in enumerate(getattr(node, "saved_tensors", ())):
            if isinstance(tensor, Tensor):
                yield f"saved_tensors[{number}]", tensor
    except RuntimeError as error:
        message = f"{short_name(node)}: {error}; do not change in place a tensor that backward needs"
        raise StudyError("invalid_request", message[:2000], "expression") from error


def short_name(node: Node) -> str:
    return node.name().removeprefix("torch::autograd::")


OwnerKind = Literal["parameter", "buffer", "cache", "input", "intermediate"]
"""`intermediate`: made by the step itself, and kept alive by nothing but the tape."""


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A saved tensor of a grad_fn node. `storage` numbers storages: equal numbers are the same memory.

    `tensor_bytes` is the size of its elements, `storage_bytes` that of its storage: for a view, of its base.
    `of` names the parameter, buffer or input.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensor_bytes: int
    storage_bytes: int
    storage: int
    kind: OwnerKind
    of: str | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over saved tensors; `storage_bytes` counts each storage once, and `by_kind` splits it.

    `own_bytes` are the intermediates, which only the tape keeps alive.
    """

    tensors: int
    tensor_bytes: int
    storages: int
    storage_bytes: int
    by_kind: dict[OwnerKind, int]
    own_bytes: int


class Storages:
    """Numbers storages in order of first use; `owned` are the tensors that exist before the tape."""

    def __init__(self, owned: Iterable[tuple[OwnerKind, str, Tensor]]) -> None:
        self._owners: dict[int, tuple[OwnerKind, str | None]] = {}
        self._numbers: dict[int, int] = {}
        for kind, name, tensor in owned:
            self._owners.setdefault(_address(tensor), (kind, name))

    def owner(self, tensor: Tensor) -> tuple[OwnerKind, str | None]:
        return self._owners.get(_address(tensor), ("intermediate", None))

    def saved(self, name: str, tensor: Tensor) -> SavedTensor:
        """Describe `tensor`, which must outlive the descriptions of others: addresses are reused."""
        address = _address(tensor)
        kind, of = self.owner(tensor)
        return SavedTensor(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            tensor_bytes=tensor.nbytes,
            storage_bytes=tensor.untyped_storage().nbytes(),
            storage=self._numbers.setdefault(address, len(self._numbers)),
            kind=kind,
            of=of,
        )


def held(saved: Iterable[SavedTensor]) -> Held:
    every = list(saved)
    by_storage = {tensor.storage: tensor for tensor in every}.values()
    by_kind: dict[OwnerKind, int] = {}
    for tensor in by_storage:
        by_kind[tensor.kind] = by_kind.get(tensor.kind, 0) + tensor.storage_bytes
    return Held(
        tensors=len(every),
        tensor_bytes=sum(tensor.tensor_bytes for tensor in every),
        storages=len(by_storage),
        storage_bytes=sum(by_kind.values()),
        by_kind=by_kind,
        own_bytes=by_kind.get("intermediate", 0),
    )


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    return sum({_address(t): t.untyped_storage().nbytes() for t in tensors}.values())


def owned_by(bench: Bench, buffers: Buffers) -> Iterator[tuple[OwnerKind, str, Tensor]]:
    """Tensors that exist before a step of the served model: weights, buffers, cache and inputs."""
    for name, parameter in bench.model.named_parameters():
        yield "parameter", name, parameter
    for name, buffer in bench.model.named_buffers():
        yield "buffer", name, buffer
    for layer, (keys, values) in enumerate(buffers.cache):
        yield "cache", f"layer {layer} keys", keys
        yield "cache", f"layer {layer} values", values
    for length, chunk in buffers.chunks.items():
        yield "input", f"chunk of {length}", chunk
    for name in ("token", "positions", "last", "one"):
        yield "input", name, getattr(buffers, name)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


MEMORY_EVENT = "[memory]"
CPU_DEVICE_TYPE = 0


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """What one step got from torch's allocator: its peak above the start, and how often, None on CUDA.

    There a replayed graph, whose pool is older, allocates nothing.
    """

    peak_bytes: int
    allocations: int | None


class TapeOfStep(msgspec.Struct, frozen=True, kw_only=True):
    mode: str
    effective: str
    held: Held
    step: Peak


def tape_of_step(bench: Bench, case: Case) -> TapeOfStep:
    """Run two steps of `case`: one with saved-tensor hooks, one that records allocations."""
    saved = saved_during(case.call, Storages(owned_by(bench, case.buffers)))
    effective = MODES[case.mode].effect(bench.device.type).name
    return TapeOfStep(mode=case.mode, effective=effective, held=held(saved), step=peak_of(bench, case))


def peak_of(bench: Bench, case: Case) -> Peak:
    if bench.device.type == "cuda":
        return _peak_on_cuda(case)
    with new_session(bench.device, memory=True) as session:
        result = case.call()
    events = chrome_events(session)
    del result
    return peak_of_events(events)


def peak_of_events(events: Iterable[dict[str, Any]]) -> Peak:
    """The peak of the running sum of the profiler's memory events on the host, in order of time."""
    changes = [
        event["args"]["Bytes"]
        for event in sorted(events, key=lambda event: event.get("ts", 0.0))
        if event["name"] == MEMORY_EVENT and event["args"]["Device Type"] == CPU_DEVICE_TYPE
    ]
    peak = max(accumulate(changes, initial=0))
    return Peak(peak_bytes=peak, allocations=sum(change > 0 for change in changes))


def _peak_on_cuda(case: Case) -> Peak:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = case.call()
    torch.cuda.synchronize()
    most = torch.cuda.max_memory_allocated() - before
    del result
    return Peak(peak_bytes=most, allocations=None)
