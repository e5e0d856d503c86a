"""The grad_fn nodes of a tape: their order in a backward pass, their names and their saved tensors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from torch import Tensor
from torch.autograd.graph import Node

from service.anatomy.errors import StudyError

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
    """The class name of `node`, without autograd's namespace."""
    return node.name().removeprefix("torch::autograd::")
