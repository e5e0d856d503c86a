"""A step of any module: `module(*args, **kwargs)`, and the trees of tensors that it takes and returns."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config
from torch.utils._pytree import tree_leaves, tree_map_only, tree_unflatten, treespec_loads

from service.step.callables import AnyStep, Exported, StepForm, load_package, unpacking

PLAIN = (bool, int, float, complex, str, bytes, type(None))
"""What a module may return beside tensors."""

ModuleStep = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""(args, kwargs) → what the module returns of them: any tree of tensors.

Where a graph is replayed, the next call of any step may overwrite the result: copy what is to last."""


def forward_of_module(module: Callable[..., Any], name: str) -> ModuleStep:
    """The module's call with a code object of its own: entries of one share a recompile limit."""

    def forward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        return module(*args, **kwargs)

    code = forward.__code__.replace(co_name=name)
    return types.FunctionType(code, forward.__globals__, name, forward.__defaults__, forward.__closure__)


def taped_module(run: AnyStep) -> ModuleStep:
    """Grad mode on. The tape is freed inside the step, and so inside its timed call, as part of its cost."""
    grad_mode = torch.enable_grad()

    def taped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        with grad_mode:
            return detached(run(args, kwargs))

    return taped


def detached(tree: Any) -> Any:  # noqa: ANN401 - any tree
    """`tree` without its tape; a mapping such as a `ModelOutput` as a dict.

    It is part of a timed call, and torch's own walk takes 10 µs for each leaf that is no tensor, and more for
    a `ModelOutput`.
    """
    if isinstance(tree, Tensor):
        return tree.detach()
    if isinstance(tree, PLAIN):
        return tree
    if type(tree) in (tuple, list):
        return type(tree)([detached(part) for part in tree])
    if isinstance(tree, Mapping):
        return {name: detached(part) for name, part in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        free = copy(tree)
        for field in fields(tree):
            object.__setattr__(free, field.name, detached(getattr(tree, field.name)))  # it may be frozen
        return free
    return tree_map_only(Tensor, Tensor.detach, tree)


def packaged_module(module: nn.Module, options: dict[str, Any]) -> ModuleStep:
    """As `callables.packaged_step`, a package for each size. Trees are taken apart once: the arguments of a
    size are the same at every call, and kept.
    """
    known: dict[tuple[int, int], tuple[Callable[[list[Tensor]], list[Tensor]], list[Tensor], Any, Any]] = {}

    def step(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        found = known.get((id(args), id(kwargs)))
        if found is not None:
            run, tensors, results, _ = found
            return tree_unflatten(run(list(tensors)), results)
        with unpacking():
            package = load_package(module, options, Exported(module, args, kwargs), by_graph=True)
            run, results = package.boxed_run, treespec_loads(package.get_call_spec()[1])
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            returned = tree_unflatten(run(list(tensors)), results)
        known[id(args), id(kwargs)] = run, tensors, results, (args, kwargs)
        return returned

    return step


def frozen_module(run: AnyStep) -> ModuleStep:
    """`run`, compiled with constant weights at its first call in each size, whose arguments are kept."""
    compiled: dict[tuple[int, int], Any] = {}

    def frozen(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
        if (id(args), id(kwargs)) in compiled:
            return run(args, kwargs)
        with inductor_config.patch(freezing=True):
            result = run(args, kwargs)
        compiled[id(args), id(kwargs)] = args, kwargs
        return result

    return frozen


MODULE = StepForm(forward_of_module, packaged_module, taped_module, frozen_module)
"""A step of a user's module, called with its arguments."""


def leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any tree
    """What is in `tree`, each with the expression that gives it where `tree` is called `name`.

    Goes through tuples, lists, mappings (such as a `ModelOutput`) and dataclasses.
    """
    parts: list[tuple[str, Any]]
    if isinstance(tree, Mapping):
        parts = [(f"{name}[{key!r}]", part) for key, part in tree.items()]
    elif is_dataclass(tree) and not isinstance(tree, type):
        parts = [(f"{name}.{field.name}", getattr(tree, field.name)) for field in fields(tree)]
    elif isinstance(tree, tuple | list):
        parts = [(f"{name}[{index}]", part) for index, part in enumerate(tree)]
    else:
        yield name, tree
        return
    for of, part in parts:
        yield from leaves(part, of)


def dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def as_json(tree: Any) -> bytes:  # noqa: ANN401 - any tree
    """JSON of `tree`: of a tensor dtype, shape and data as nested lists, in which NaN and infinity are null,
    and a complex number is a pair.
    """
    return msgspec.json.encode(_plain(tree))


def _plain(tree: Any) -> Any:  # noqa: ANN401 - any tree
    if isinstance(tree, Tensor):
        dense = tree.detach().to_dense() if tree.layout is not torch.strided else tree.detach()
        data = torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense
        return {"dtype": dtype_name(tree), "shape": list(tree.shape), "data": data.tolist()}
    if isinstance(tree, Mapping):
        return {str(name): _plain(part) for name, part in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        return {field.name: _plain(getattr(tree, field.name)) for field in fields(tree)}
    if isinstance(tree, tuple | list):
        return [_plain(part) for part in tree]
    return tree
