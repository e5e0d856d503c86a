"""What the profiler does not record of a call: calling line, dispatch keys, whether it returned a view."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from service.anatomy.operators.dispatch_keys import ThreadKeys, visited
from service.anatomy.operators.source_lines import SourceLine, calling_line

_Args = tuple[Any, ...]
_Kwargs = dict[str, Any] | None
_Result = Any
_SHALLOW_COPY = "aten::detach"

SAME_CALL = {"aten::_reshape_alias": "aten::view"}
"""`aten::reshape` calls the left one, and under a dispatch mode the right one."""


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """One call below autograd. `line` is the innermost one outside torch, None where there is none.

    `to_host`: it got tensors of another device and returned one on the host.
    """

    schema_name: str
    line: SourceLine | None
    keys: list[str]
    is_view: bool
    to_host: bool


class OperatorRecorder(TorchDispatchMode):
    """While active, appends one record per call to `seen`, in order. Composite operators are decomposed."""

    def __init__(self, thread: ThreadKeys) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._thread = thread
        self.seen: list[OperatorRecord] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True, because compiled code runs uncompiled under any other dispatch mode."""
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: _Args = (), kwargs: _Kwargs = None
    ) -> _Result:
        kwargs = kwargs or {}
        decomposed = decompose(self, func, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        result = func(*args, **kwargs)
        self._see(func, _tensors((args, kwargs)), _tensors(result))
        return result

    def _see(self, func: OpOverload, given: list[Tensor], made: list[Tensor]) -> None:
        if is_autograds_copy(func):
            return
        record = OperatorRecord(
            schema_name=func.name(),
            line=calling_line(__name__),
            keys=_keys(func, given, made, self._thread),
            is_view=is_view(func, given, made),
            to_host=_to_host(given, made),
        )
        self.seen.append(record)


def decompose(mode: TorchDispatchMode, func: OpOverload, args: _Args, kwargs: dict[str, Any]) -> _Result:
    """What `func` returns where it is composite, by calls that `mode` sees in its place; else NotImplemented.

    In inference mode a dispatch mode gets composite operators whole; with autograd's keys, what they call.
    """
    if not func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        return NotImplemented
    with mode:
        return func.decompose(*args, **kwargs)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _keys(func: OpOverload, given: list[Tensor], made: list[Tensor], thread: ThreadKeys) -> list[str]:
    keys = visited(func.name(), given, thread)
    if keys[-1:] == ["BackendSelect"] and made:
        keys.append(made[0].device.type.upper())  # no tensor argument: the options choose the backend
    return keys


def is_view(func: OpOverload, given: Iterable[Tensor], made: list[Tensor]) -> bool:
    """Whether every result shares a storage with an argument, of an operator that mutates nothing."""
    if func._schema.is_mutable or not made:
        return False
    addresses = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in addresses for tensor in made)


def _to_host(given: Iterable[Tensor], made: Iterable[Tensor]) -> bool:
    elsewhere = any(tensor.device.type not in {"cpu", "meta"} for tensor in given)
    return elsewhere and any(tensor.device.type == "cpu" for tensor in made)


def is_autograds_copy(func: OpOverload, *dispatch_modes: str) -> bool:
    """Whether `func` is a `detach` that only a dispatch mode sees: autograd's shallow copy of a saved output.

    Without a dispatch mode that copy calls no operator. `dispatch_modes` are the modules of the modes that
    are active, whose frames are no callers.
    """
    if func.name() != _SHALLOW_COPY:
        return False
    line = calling_line(__name__, *dispatch_modes)
    return line is None or "detach" not in line.text
