"""The operators of the layer table: how a user calls each, and on which tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from service.protocol.expressions import OPERATOR_CALLS

no_operation = "".format
"""A C function that takes any arguments, packed in a tuple as torch's are, and ignores them."""


def _like(first: Tensor) -> list[Tensor]:
    return [torch.empty_like(first)]


def _scalar(first: Tensor) -> list[Tensor]:
    return [first.new_empty(())]


def _view(first: Tensor) -> list[Tensor]:
    del first
    return []


def _normalised(first: Tensor) -> list[Tensor]:
    """With mean and reciprocal standard deviation, which layer norm always computes."""
    rows = (*first.shape[:1], 1)
    return _like(first) + [torch.empty(rows, device=first.device, dtype=torch.float32) for _ in range(2)]


@dataclass(frozen=True, slots=True)
class Operation:
    """One operator. `arguments` name its tensors in the statement, in the order of the loop's.

    `name` is also that of its C++ loop, `loop_out` that of its out= form, None where torch has none.
    `lowered`: autocast computes it in bfloat16. Arguments are
    [rows, size], those in `square` [size, size], those in `features` [size]. `allocates`: from the first
    argument, tensors like those that it allocates.
    """

    name: str
    arguments: tuple[str, ...] = ("x",)
    loop_out: str | None = None
    lowered: bool = False
    square: frozenset[str] = field(default_factory=frozenset)
    features: frozenset[str] = field(default_factory=frozenset)
    allocates: Callable[[Tensor], list[Tensor]] = _like

    @property
    def statement(self) -> str:
        """How a user writes the call."""
        return OPERATOR_CALLS[self.name]

    def shape(self, argument: str, rows: int, size: int) -> tuple[int, ...]:
        """Shape of one argument."""
        if argument in self.features:
            return (size,)
        return (size, size) if argument in self.square else (rows, size)

    def tensors(
        self, rows: int, size: int, device: torch.device, dtype: torch.dtype, requires_grad: bool = True
    ) -> list[Tensor]:
        """Its arguments as in a model: an activation with a grad_fn, then parameters; all require grad.

        Without `requires_grad` none does.
        """
        shapes = [self.shape(argument, rows, size) for argument in self.arguments]
        first, *others = (torch.randn(shape, device=device, dtype=dtype) for shape in shapes)
        if not requires_grad:
            return [first, *others]
        return [first.requires_grad_().mul(1.0), *(other.requires_grad_() for other in others)]

    def results(self, tensors: list[Tensor]) -> list[Tensor]:
        """The tensors that it allocates, in a call on `tensors` that do not require grad."""
        return self.allocates(tensors[0])

    def names(self, tensors: list[Tensor]) -> dict[str, Any]:
        """The names that the statement uses."""
        shape = [tensors[0].shape[-1]]
        return {"torch": torch, "F": functional, "shape": shape} | dict(
            zip(self.arguments, tensors, strict=True)
        )


OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for operation in (
        Operation("matmul", ("x", "weight"), "matmul_out", lowered=True, square=frozenset({"weight"})),
        Operation("add", ("x", "y"), "add_out"),
        Operation(
            "layer_norm",
            ("x", "weight", "bias"),
            features=frozenset({"weight", "bias"}),
            allocates=_normalised,
        ),
        Operation("mul", ("x", "y"), "mul_out"),
        Operation("exp", loop_out="exp_out"),
        Operation("relu"),
        Operation("sum", allocates=_scalar),
        Operation("softmax"),
        Operation("transpose", allocates=_view),
    )
}
"""By the names of `OPERATOR_CALLS`."""


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
