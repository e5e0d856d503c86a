"""Sizes that change from call to call: marked for the compiler, and known again where a step is exported."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SIZE = "_launchbound_symbolic_size"
"""The attribute of a tensor that has its `SymbolicSize`: torch keeps the range of enforced marks only."""


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """The second dimension of a tensor has `least` to `most` elements; `enforced`: any number in between."""

    least: int
    most: int
    enforced: bool


def make_symbolic(tensor: Tensor, sizes: list[int], enforced: bool) -> None:
    """Mark the second dimension of `tensor` as one that changes among `sizes`.

    One compiled callable then serves all of them: a callable per size would double and redouble compilations.
    `enforced`: a compilation whose callable would not serve each length between the least size and the
    largest raises ConstraintViolationError. Otherwise it is guarded by what it needs (a length that is a
    multiple of 8, say), and compiled again for sizes that fail its guards.
    """
    size = SymbolicSize(max(2, min(sizes)), max(sizes), enforced)
    if enforced:
        torch._dynamo.mark_dynamic(tensor, 1, min=size.least, max=size.most)
    else:
        torch._dynamo.maybe_mark_dynamic(tensor, 1)
    setattr(tensor, SIZE, size)


def symbolic_size(tensor: Tensor) -> SymbolicSize | None:
    """What `make_symbolic` has marked the second dimension of `tensor` as; None: it does not change."""
    size: SymbolicSize | None = getattr(tensor, SIZE, None)
    return size
