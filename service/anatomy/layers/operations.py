"""The operators of the layer table: how a user calls each, and on which tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

no_operation = "".format
"""A function of C that takes any arguments, packed in a tuple as torch's are, and does nothing with them."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator. `arguments` name its tensors in the statement and in order of the loop's.

    `loop` is its name among the loops in C++, `loop_out` that of the form which writes into a given tensor;
    None where torch has none. `lowered` says whether autocast computes it in bfloat16. Arguments are
    [rows, size], those in `square` [size, size], those in `features` [size].
    """

    name: str
    statement: str
    arguments: tuple[str, ...]
    loop: str
    loop_out: str | None
    lowered: bool = False
    square: frozenset[str] = field(default_factory=frozenset)
    features: frozenset[str] = field(default_factory=frozenset)

    def shape(self, argument: str, rows: int, size: int) -> tuple[int, ...]:
        """Shape of one argument."""
        if argument in self.features:
            return (size,)
        return (size, size) if argument in self.square else (rows, size)

    def tensors(self, rows: int, size: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
        """Its arguments as in a model: an activation with a history, then parameters; all require grad."""
        shapes = [self.shape(argument, rows, size) for argument in self.arguments]
        first, *others = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
        return [first.requires_grad_().mul(1.0), *(other.requires_grad_() for other in others)]

    def results(self, tensors: list[Tensor]) -> list[Tensor]:
        """What it allocates, in a call on `tensors` that require no grad."""
        found = torch.empty_like(tensors[0])
        if self.name != "layer_norm":
            return [found]
        rows = (*found.shape[:1], 1)
        # Mean and reciprocal deviation, which it computes whether anybody will ask for them or not.
        return [found, *(torch.empty(rows, device=found.device, dtype=torch.float32) for _ in range(2))]

    def names(self, tensors: list[Tensor]) -> dict[str, Any]:
        """What the statement refers to."""
        shape = [tensors[0].shape[-1]]
        return {"torch": torch, "F": functional, "shape": shape} | dict(
            zip(self.arguments, tensors, strict=True)
        )


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation(
            "matmul",
            "torch.matmul(x, weight)",
            ("x", "weight"),
            "matmul",
            "matmul_out",
            lowered=True,
            square=frozenset({"weight"}),
        ),
        Operation("add", "torch.add(x, y)", ("x", "y"), "add", "add_out"),
        Operation(
            "layer_norm",
            "F.layer_norm(x, shape, weight, bias)",
            ("x", "weight", "bias"),
            "layer_norm",
            None,
            features=frozenset({"weight", "bias"}),
        ),
    )
}


def hollow_names(names: Mapping[str, Any]) -> dict[str, Any]:
    """`names` with torch's C functions replaced by one that does nothing; torch's Python around them stays.

    `F.layer_norm` keeps its own bytecode, which is only shown another `torch`.
    """
    hollow = ModuleType("torch")
    for operation in OPERATIONS:
        setattr(hollow, operation, no_operation)
    hollow.backends = torch.backends  # type: ignore[attr-defined]
    functions = ModuleType("torch.nn.functional")
    original = functional.layer_norm
    seen = {**functional.__dict__, "torch": hollow}
    copied = FunctionType(original.__code__, seen, original.__name__, original.__defaults__)
    functions.layer_norm = copied  # type: ignore[attr-defined]
    return {**names, "torch": hollow, "F": functions}
