"""The arms that are timed for one operator at one size; each isolates a part of the user's call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from service.anatomy.layers.arms import Arm, State, python_arm, python_arm_after
from service.anatomy.layers.loops import Loops
from service.anatomy.layers.operations import Operation, hollow_names
from service.anatomy.layers.replays import graph_arm


@dataclass(frozen=True, slots=True)
class Setup:
    """Device, dtype and state of the user's call, the C++ loops, and whether its tensors require grad."""

    device: torch.device
    dtype: torch.dtype
    state: State
    loops: Loops
    requires_grad: bool = True

    @property
    def taped(self) -> State:
        """The requested state without autocast; grad mode on where that is inference mode."""
        return State("enabled" if self.state.grad == "inference_mode" else self.state.grad)

    def lowers(self, operation: Operation) -> bool:
        """Whether autocast computes it in bfloat16 here."""
        return self.state.autocast and operation.lowered and self.dtype == torch.float32


@dataclass(frozen=True, slots=True)
class Tensors:
    """Arguments of one operator: `sized` as in the user's call, of one element, and of none."""

    sized: list[Tensor]
    smallest: list[Tensor]
    empty: list[Tensor]
    computed: list[Tensor]
    """The kernel's arguments: `sized`, after autocast."""


def arms_of(setup: Setup, operation: Operation, size: int) -> dict[str, Arm]:
    """Every arm of `operation` on [size, size]."""
    sized, smallest, empty = (
        operation.tensors(rows, width, setup.device, setup.dtype, setup.requires_grad)
        for rows, width in ((size, size), (1, 1), (0, 1))
    )
    lowered = torch.bfloat16 if setup.lowers(operation) else setup.dtype
    tensors = Tensors(
        sized,
        smallest,
        [tensor.detach() for tensor in empty],
        [tensor.detach().to(lowered) for tensor in sized],
    )
    computing, given = _computing(operation, tensors.computed)
    arms = {
        "whole": python_arm(operation.statement, operation.names(sized), setup.state),
        "compute": Arm(lambda times: setup.loops.plain(computing, given, times)),
    }
    if setup.device.type == "cuda":
        arms["graph"] = graph_arm(setup.loops, computing, given)
    return arms | _from_python(setup, operation, tensors) | _from_native(setup, operation, tensors)


def _from_python(setup: Setup, operation: Operation, tensors: Tensors) -> dict[str, Arm]:
    """Statements of Python on one element, each after a call of the real size."""
    names = operation.names(tensors.smallest)
    before: Callable[[], object] = eval(f"lambda: {operation.statement}", operation.names(tensors.sized))

    def arm(statement: str, names: dict[str, Any], state: State | None = None) -> Arm:
        return python_arm_after(before, statement, names, state)

    return {
        "python clock": arm("pass", {}),
        "hollow": arm(operation.statement, hollow_names(names)),
        "from python": arm(operation.statement, names),
        "taped": arm(operation.statement, names, setup.taped),
    }


def _from_native(setup: Setup, operation: Operation, tensors: Tensors) -> dict[str, Arm]:
    """Calls from C++, each after a call of the real size."""
    results = operation.results(tensors.computed)
    computing, given = _computing(operation, tensors.empty)
    state = setup.state
    loops = setup.loops
    # Autocast caches leaves that require grad, under inference mode none; all others it casts in every call.
    cached = setup.requires_grad and state.grad != "inference_mode"
    cast = slice(1) if cached else slice(None)

    def arm(name: str, these: list[Tensor], state: State | None = None) -> Arm:
        def run(times: int) -> float:
            return loops.after(name, these, operation.name, tensors.sized, times)

        return Arm(run, state or State())

    return {
        "native clock": arm("nothing", []),
        "dispatcher": arm("dispatcher", (tensors.smallest * 2)[:2]),
        "from native": arm(operation.name, tensors.smallest),
        "autocast": arm(operation.name, tensors.smallest, State(state.grad, autocast=True)),
        "no autocast": arm(operation.name, tensors.smallest, State(state.grad)),
        "cast": arm("cast", tensors.sized[cast]),
        "cast of one": arm("cast", tensors.smallest[cast]),
        "compute nothing": arm(computing, given),
        "allocate": arm("allocate", results),
        "allocate nothing": arm("allocate", operation.results(tensors.empty)),
    }


def _computing(operation: Operation, tensors: list[Tensor]) -> tuple[str, list[Tensor]]:
    """The loop and its arguments, with preallocated results where the operator has an out= form."""
    if operation.loop_out is None:
        return operation.name, tensors
    return operation.loop_out, [*tensors, *operation.results(tensors)]
