"""What the profiler does not note of a call: the line that made it, its keys, whether it returned a view."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from service.anatomy.operators.dispatch_keys import ThreadKeys, visited

_OURS = Path(__file__).parents[3]
_TORCH = str(Path(torch.__file__).parent)
_Given = tuple[Any, ...]
_Named = dict[str, Any] | None
_Made = Any
_SHALLOW_COPY = "aten::detach"

SAME_CALL = {"aten::_reshape_alias": "aten::view"}
"""`aten::reshape` calls the left one, and the right one instead where a dispatch mode looks on."""


@dataclass(frozen=True, slots=True)
class OperatorRecord:
    """One call below autograd. `line` is the nearest one outside torch, as `file:number`.

    `to_host`: it was given tensors of another device and made one on the host.
    """

    schema_name: str
    line: str | None
    keys: list[str]
    is_view: bool
    to_host: bool


class OperatorRecorder(TorchDispatchMode):
    """Within: collects `seen`, one per call, in order. Composite operators are taken apart."""

    def __init__(self, thread: ThreadKeys) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._thread = thread
        self.seen: list[OperatorRecord] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Lets compiled code run: the compiler steps aside for any other mode."""
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: _Given = (), kwargs: _Named = None
    ) -> _Made:
        kwargs = kwargs or {}
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                taken_apart = func.decompose(*args, **kwargs)
            if taken_apart is not NotImplemented:
                return taken_apart
        result = func(*args, **kwargs)
        self._see(func, _tensors((args, kwargs)), _tensors(result))
        return result

    def _see(self, func: OpOverload, given: list[Tensor], made: list[Tensor]) -> None:
        if nobody_called(func):
            return
        file, number, _ = _caller()
        record = OperatorRecord(
            schema_name=func.name(),
            line=short_place(file, number) if file else None,
            keys=_keys(func, given, made, self._thread),
            is_view=is_view(func, given, made),
            to_host=_to_host(given, made),
        )
        self.seen.append(record)


def _tensors(tree: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _keys(func: OpOverload, given: list[Tensor], made: list[Tensor], thread: ThreadKeys) -> list[str]:
    keys = visited(func.name(), given, thread)
    if keys[-1:] == ["BackendSelect"] and made:
        keys.append(made[0].device.type.upper())  # no tensor brought a backend: its options chose one
    return keys


def is_view(func: OpOverload, given: Iterable[Tensor], made: list[Tensor]) -> bool:
    """Whether what it made lies in the memory of what it was given, and it wrote nothing."""
    if func._schema.is_mutable or not made:
        return False
    addresses = {tensor.untyped_storage()._cdata for tensor in given}
    return all(tensor.untyped_storage()._cdata in addresses for tensor in made)


def _to_host(given: Iterable[Tensor], made: Iterable[Tensor]) -> bool:
    elsewhere = any(tensor.device.type not in {"cpu", "meta"} for tensor in given)
    return elsewhere and any(tensor.device.type == "cpu" for tensor in made)


def nobody_called(func: OpOverload, *looking_on: str) -> bool:
    """Whether a dispatch mode, whose code is in the files `looking_on`, sees `func` only because it looks on.

    Autograd's shallow copy of an output that it saves is a detach then; without a mode no operator runs.
    """
    return func.name() == _SHALLOW_COPY and "detach" not in _caller(*looking_on)[2]


def _caller(*looking_on: str) -> tuple[str, int, str]:
    """File, line number and text of the innermost frame outside torch, this module and `looking_on`."""
    aside = {__file__, *looking_on}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in aside and not file.startswith(_TORCH):
            return file, frame.f_lineno, linecache.getline(file, frame.f_lineno).strip()
        frame = frame.f_back
    return "", 0, ""


def short_place(file: str, number: int) -> str:
    """`file:number`: below our own folder where it is ours, `generated code` for what the compiler wrote."""
    path = Path(file)
    if path.is_relative_to(cache_dir()):
        return f"generated code:{number}"
    shown = path.relative_to(_OURS) if path.is_relative_to(_OURS) else Path(*path.parts[-2:])
    return f"{shown.as_posix()}:{number}"
