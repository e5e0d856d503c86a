"""Torch's registry of ATen: how many operators and overloads it has, and how many of them are core ATen."""

from __future__ import annotations

from functools import cache

import msgspec
import torch

_ATEN = "aten::"


class Registry(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the dispatcher of this process: `overloads` of ATen in total, under `operators` names.

    `core_overloads` and `core_operators` are those that carry `torch.Tag.core`: the set that a backend has to
    know after decomposition.
    """

    overloads: int
    operators: int
    core_overloads: int
    core_operators: int


@cache
def count_registry() -> Registry:
    """Count once per process: reading the tags of every overload takes some tenths of a second."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(_ATEN)]
    core = [name for name in names if is_core(name)]
    return Registry(
        overloads=len(names),
        operators=len({_operator(name) for name in names}),
        core_overloads=len(core),
        core_operators=len({_operator(name) for name in core}),
    )


def is_core(name: str) -> bool:
    """Whether the overload `name`, such as `aten::add.Tensor`, is of core ATen. False for an unknown one."""
    operator, _, overload = name.partition(".")
    found = torch._C._get_operation_overload(operator, overload)
    return found is not None and torch.Tag.core in found[2]


def _operator(name: str) -> str:
    return name.partition(".")[0]
