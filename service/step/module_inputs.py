"""The static inputs of a user's module at one batch size, filled by its own function or a client's JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from models.workload import ModuleError, UserModule
from service.records import Phase
from service.step.buffers import InputKind, ModuleArguments, static
from service.step.module_step import dtype_name, leaves

SEED = 0
"""Of the inputs on which a module is compiled, checked and sampled."""


OTHER_SEEDS = range(1, 9)
"""Of inputs on which a module is called as well, where what it does may depend on their values."""


class WrongInputs(ValueError):
    """Inputs that the module is not called on; the message says what it is called on. `field` names them."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class ModuleInputs:
    """Fulfils `StepInputs` for `user`'s module at `batch`.

    Every mode reads the same tensors, at the same addresses. Others are copied into them. Raises ModuleError
    where the user's function fails, or gives other shapes for another seed.
    """

    def __init__(self, user: UserModule, batch: int) -> None:
        self._user = user
        self._batch = batch
        example = user.inputs(batch, SEED)
        self._leaves, self._tree = tree_flatten((tuple(example.args), dict(example.kwargs)))
        # Clones made here are of no inference mode: grad mode needs them as well. They have no holes and
        # share no memory, so that they can be written.
        with torch.inference_mode(False):
            self._leaves = [
                static(leaf.detach().clone()) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves
            ]
        self.arguments: ModuleArguments = tree_unflatten(self._leaves, self._tree)
        self._seed: int | None = SEED
        self.of_seed(OTHER_SEEDS[0])

    def prepare(self) -> None:
        self.fill(self.of_seed(SEED), SEED)

    def shapes(self, phase: Phase) -> Iterator[ModuleArguments]:
        yield self.arguments

    def measured(self, phase: Phase) -> ModuleArguments:
        self.prepare()
        return self.arguments

    def varied(self) -> Iterator[ModuleArguments]:
        """Those of OTHER_SEEDS, one after the other in the same tensors."""
        for seed in OTHER_SEEDS:
            self.fill(self.of_seed(seed), seed)
            yield self.arguments

    def of_seed(self, seed: int) -> list[Any] | None:
        """What the module's own function gives for `seed`, for `fill`; None where that is what they hold.

        Raises ModuleError where it is unlike what it gave before.
        """
        if seed == self._seed:
            return None
        example = self._user.inputs(self._batch, seed)
        found, tree = tree_flatten((tuple(example.args), dict(example.kwargs)))
        if tree != self._tree or [_kind(leaf) for leaf in found] != [_kind(leaf) for leaf in self._leaves]:
            raise ModuleError(
                f"inputs({self._batch}, {seed}) of {self._user.name} gives {_described(example)}, and with "
                f"seed {SEED} {self}: give the same shapes, dtypes and other values for every seed"
            )
        return found

    def of_json(self, text: bytes) -> list[Any]:
        """A client's, for `fill`: a list of positional arguments, or an object of named ones, with nested
        lists for a tensor. Raises WrongInputs.
        """
        given = msgspec.json.decode(text)
        args, kwargs = self.arguments
        if isinstance(given, list):
            return [*_taken(args, given, "inputs"), *_taken(kwargs, {}, "inputs")]
        return [*_taken(args, [], "inputs"), *_taken(kwargs, given, "inputs")]

    def fill(self, found: Iterable[Any] | None, seed: int | None = None) -> None:
        """Copy them in; `seed` is what they were made of. None: nothing is to change."""
        if found is None:
            return
        with torch.no_grad():
            for leaf, new in zip(self._leaves, found, strict=True):
                if isinstance(leaf, Tensor):
                    leaf.copy_(new)
        self._seed = seed

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors among them, by name."""
        args, kwargs = self.arguments
        for name, leaf in [*leaves(args, "inputs"), *leaves(kwargs, "inputs")]:
            if isinstance(leaf, Tensor):
                yield name, leaf

    def owned(self) -> Iterator[tuple[InputKind, str, Tensor]]:
        for name, tensor in self.tensors():
            yield "input", name, tensor

    def __str__(self) -> str:
        return _described(self.arguments)


def _described(arguments: Any) -> str:  # noqa: ANN401 - args and kwargs
    args, kwargs = arguments
    found = [*leaves(tuple(args), "inputs"), *leaves(dict(kwargs), "inputs")]
    return ", ".join(f"{name} {_kind(leaf)}" for name, leaf in found)


def _kind(leaf: object) -> str:
    return f"{dtype_name(leaf)} {list(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)


def _taken(example: Any, given: Any, name: str) -> Iterator[Any]:  # noqa: ANN401 - any JSON
    """The leaves of `given`, which is called `name`, as those of `example` lie. Raises WrongInputs."""
    if isinstance(example, dict):
        if not isinstance(given, dict):
            raise WrongInputs(name, f"expected an object with {', '.join(map(str, example)) or 'nothing'}")
        if unlike := sorted(map(str, example.keys() ^ given.keys())):
            expected = ", ".join(map(str, example)) or "no names: give a list"
            raise WrongInputs(f"{name}.{unlike[0]}", f"the module is called with {expected}")
        for key, part in example.items():
            yield from _taken(part, given[key], f"{name}.{key}")
    elif isinstance(example, tuple | list):
        if not isinstance(given, list) or len(given) != len(example):
            count = len(example)
            expected = f"a list of {count}" if count else "an object: the module is called with names"
            raise WrongInputs(name, f"expected {expected}")
        for index, part in enumerate(example):
            yield from _taken(part, given[index], f"{name}[{index}]")
    elif isinstance(example, Tensor):
        yield _tensor(example, given, name)
    elif given != example:
        raise WrongInputs(name, f"expected {example!r}, which is no tensor and is not to change")
    else:
        yield given


def _tensor(example: Tensor, given: object, name: str) -> Tensor:
    """`given` as a tensor like `example`. Raises WrongInputs."""
    if example.layout is not torch.strided or example.is_complex():
        raise WrongInputs(name, "a sparse or complex tensor cannot be given as JSON: send a seed")
    expected = f"{dtype_name(example)} of shape {list(example.shape)}"
    try:
        inferred = torch.tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise WrongInputs(name, f"expected nested lists of {expected} ({error})") from None
    shape, kinds = list(inferred.shape), [_category(inferred), _category(example)]
    # Of no element torch infers a float.
    if shape != list(example.shape) or (kinds not in _ALLOWED and inferred.numel()):
        raise WrongInputs(name, f"expected {expected}, got {kinds[0]} of shape {shape}")
    try:
        return torch.tensor(given, dtype=example.dtype)
    except (RuntimeError, OverflowError) as error:  # a number that the dtype does not have
        raise WrongInputs(name, f"expected {expected} ({error})") from None


_ALLOWED = (["bool", "bool"], ["integer", "integer"], ["float", "float"], ["integer", "float"])


def _category(tensor: Tensor) -> str:
    if tensor.dtype is torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "integer"
