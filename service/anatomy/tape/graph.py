"""Reads a tape: forward operators, grad_fn nodes in backward order, and the tensors that each node saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from service.anatomy.errors import StudyError
from service.anatomy.operators.records import decompose, is_autograds_copy, is_view
from service.anatomy.tape.nodes import execution_order, saved_by, short_name
from service.anatomy.tape.storages import OwnerKind, SavedTensor, Storages, tensor_bytes, tensors_in

ACCUMULATE = "AccumulateGrad"


class ForwardOperator(msgspec.Struct, frozen=True, kw_only=True):
    """One operator below autograd, in order. `node` is its grad_fn node, None where it has none.

    `new_bytes` is the memory that its results allocated: 0 for a view and for a write in place.
    """

    operator: str
    shape: tuple[int, ...]
    new_bytes: int
    is_view: bool
    node: int | None


class BackwardNode(msgspec.Struct, frozen=True, kw_only=True):
    """One grad_fn node; `index` is its place in the engine's order.

    `feeds` are the nodes that receive its gradients, one entry per edge.
    """

    index: int
    name: str
    feeds: tuple[int, ...]
    saved: tuple[SavedTensor, ...]

    @property
    def saved_bytes(self) -> int:
        """Bytes of the elements that it saved."""
        return sum(tensor.tensor_bytes for tensor in self.saved)


class Leaf(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that gets a `.grad` of `grad_bytes`, accumulated by `node`.

    One of kind `input` stands for an activation: in a real step it is not a leaf, and has no `.grad`.
    """

    name: str
    kind: OwnerKind
    shape: tuple[int, ...]
    grad_bytes: int
    node: int


class ForwardRecorder(TorchDispatchMode):
    """Records every operator with the sequence number of the node made for it, -1 where none was."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[ForwardOperator, int]] = []
        self._newest = _newest_node()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
        decomposed = decompose(self, func, args, kwargs or {})
        if decomposed is not NotImplemented:
            return decomposed
        newest = _newest_node()
        before = self._newest
        self._newest = newest
        result = func(*args, **(kwargs or {}))
        if is_autograds_copy(func, __name__):
            return result
        given_tensors = list(tensors_in((args, kwargs)))
        results = list(tensors_in(result))
        given = {t.untyped_storage().data_ptr() for t in given_tensors}
        new = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in results}
        operator = ForwardOperator(
            operator=str(func),
            shape=tuple(results[0].shape) if results else (),
            new_bytes=sum(size for address, size in new.items() if address not in given),
            is_view=is_view(func, given_tensors, results),
            node=None,
        )
        self.seen.append((operator, newest if newest != before else -1))
        return result


@dataclass(slots=True)
class Tape:
    """Forward operators, grad_fn nodes in backward order, and leaves."""

    forward: list[ForwardOperator] = field(default_factory=list)
    nodes: list[BackwardNode] = field(default_factory=list)
    leaves: list[Leaf] = field(default_factory=list)


def record(
    run: Callable[[], Tensor], storages: Storages, owner: Callable[[Tensor], tuple[OwnerKind, str]]
) -> Tape:
    """The tape of `run`'s result, with grad mode on. `owner` gives a leaf's kind and name.

    Raises StudyError where the result has no grad_fn, or where a saved tensor was changed in place since.
    """
    with torch.enable_grad(), ForwardRecorder() as recorder:
        result = run()
    if result.grad_fn is None:
        raise StudyError("invalid_request", "the result has no grad_fn: use x, w or b in it", "expression")
    order = execution_order(result.grad_fn)
    numbers = {node: index for index, node in enumerate(order)}
    by_sequence = {node._sequence_nr(): index for node, index in numbers.items()}
    tape = Tape()
    for operator, sequence in recorder.seen:
        tape.forward.append(msgspec.structs.replace(operator, node=by_sequence.get(sequence)))
    for node, index in numbers.items():
        saved = tuple(storages.saved(name, tensor) for name, tensor in saved_by(node))
        feeds = tuple(numbers[to] for to, _ in node.next_functions if to is not None)
        tape.nodes.append(BackwardNode(index=index, name=short_name(node), feeds=feeds, saved=saved))
        if ACCUMULATE in node.name():
            leaf: Tensor = node.variable  # type: ignore[attr-defined]
            kind, name = owner(leaf)
            tape.leaves.append(
                Leaf(name=name, kind=kind, shape=tuple(leaf.shape), grad_bytes=tensor_bytes(leaf), node=index)
            )
    return tape


def hooked(run: Callable[[], object], storages: Storages) -> list[SavedTensor]:
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
