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
"""A C function that takes any arguments, packed in a tuple as torch's are, and ignores them."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator. `arguments` name its tensors in the statement, in the order of the loop's.

    `loop` is its name among the C++ loops, `loop_out` that of its out= form, None where torch has none.
    `lowered`: autocast computes it in bfloat16. Arguments are
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
        """Its arguments as in a model: an activation with a grad_fn, then parameters; all require grad."""
        shapes = [self.shape(argument, rows, size) for argument in self.arguments]
        first, *others = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
        return [first.requires_grad_().mul(1.0), *(other.requires_grad_() for other in others)]

    def results(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors that it allocates, in a call on `tensors` that do not require grad."""
        found = torch.empty_like(tensors[0])
        if self.name != "layer_norm":
            return [found]
        rows = (*found.shape[:1], 1)
        # Mean and reciprocal standard deviation, which it always computes.
        return [found, *(torch.empty(rows, device=found.device, dtype=torch.float32) for _ in range(2))]

    def names(self, tensors: list[Tensor]) -> dict[str, Any]:
        """The names that the statement uses."""
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
    """`names` with torch's C functions replaced by `no_operation`; torch's Python around them stays.

    `F.layer_norm` keeps its bytecode; only its global `torch` is replaced.
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
