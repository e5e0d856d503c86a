"""The static inputs of a user's module at one batch size, filled by its own function or with a client's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from models.workload import ModuleError, UserModule
from service.forward_records import BatchPlace
from service.records import Phase
from service.step.buffers import InputKind, ModuleArguments, SizedArguments, static
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


class ShapeInputs:
    """The static inputs of `user`'s module at `batch`, in one of its sizes, if it has some.

    Every mode reads the same tensors, at the same addresses. Others are copied into them. Raises ModuleError
    where the user's function fails, or gives other shapes for another seed.
    """

    def __init__(self, user: UserModule, batch: int, size: str | None = None) -> None:
        self._user = user
        self._batch = batch
        self._size = size
        example = user.inputs(batch, SEED, size)
        self._leaves, self._tree = tree_flatten((tuple(example.args), dict(example.kwargs)))
        # Clones made here are of no inference mode: grad mode needs them as well. They have no holes and
        # share no memory, so that they can be written.
        with torch.inference_mode(False):
            owned = {
                id(leaf): static(leaf.detach().clone()) for leaf in self._leaves if isinstance(leaf, Tensor)
            }
        # An argument that is given twice stays one tensor: modules ask whether two are the same.
        self._repeats = _repeats(self._leaves)
        self._leaves = [owned.get(id(leaf), leaf) for leaf in self._leaves]
        self.arguments = SizedArguments(tree_unflatten(self._leaves, self._tree))
        self.arguments.number = user.sizes.index(size) if size is not None else 0
        self._seed: int | None = SEED
        self.of_seed(OTHER_SEEDS[0])

    def prepare(self) -> None:
        self.fill(self.of_seed(SEED), SEED)

    def of_seed(self, seed: int) -> list[Any] | None:
        """What the module's own function gives for `seed`, for `fill`; None where that is what they hold.

        Raises ModuleError where it is unlike what it gave before.
        """
        if seed == self._seed:
            return None
        example = self._user.inputs(self._batch, seed, self._size)
        found, tree = tree_flatten((tuple(example.args), dict(example.kwargs)))
        kinds, own = ([_kind(leaf) for leaf in some] for some in (found, self._leaves))
        if tree != self._tree or kinds != own or _repeats(found) != self._repeats:
            called = ", ".join(map(str, (self._batch, seed, self._size)[: 2 if self._size is None else 3]))
            raise ModuleError(
                f"inputs({called}) of {self._user.name} gives {_described(example)}, and with "
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
            return self._of_client([*_taken(args, given, "inputs"), *_taken(kwargs, {}, "inputs")])
        return self._of_client([*_taken(args, [], "inputs"), *_taken(kwargs, given, "inputs")])

    def of_safetensors(self, content: bytes) -> list[Any]:
        """A client's, for `fill`: tensors by the names of the arguments, or by their places, "0", "1", ….
        What is no tensor is as it was. Raises WrongInputs.
        """
        args, kwargs = self.arguments
        own = {**{str(index): part for index, part in enumerate(args)}, **kwargs}
        nested = [name for name, part in own.items() if isinstance(part, dict | tuple | list)]
        if nested:
            raise WrongInputs("safetensors", f"argument {nested[0]} is a tree of tensors: send inputs")
        try:
            given = tensors_of(content)
        except SafetensorError as error:
            raise WrongInputs("safetensors", f"this is no file of that format ({error})") from None
        expected = {name: part for name, part in own.items() if isinstance(part, Tensor)}
        if unlike := sorted(expected.keys() ^ given.keys()):
            named = ", ".join(expected)
            raise WrongInputs(f"safetensors.{unlike[0]}", f"the module is called with {named}")
        for name, tensor in expected.items():
            if tensor.layout is not torch.strided or _kind(given[name]) != _kind(tensor):
                raise WrongInputs(
                    f"safetensors.{name}", f"expected {_kind(tensor)}, got {_kind(given[name])}"
                )
        return self._of_client([given.get(name, part) for name, part in own.items()])

    @property
    def batch_place(self) -> BatchPlace | None:
        """Where a client's inputs have the batch; None: in no dimension, or in a tree of another kind."""
        args, kwargs = self.arguments
        path = _first_tensor(args) or _first_tensor(kwargs)
        dimension = self._user.batch_dimension
        return BatchPlace(path=path, dimension=dimension) if path and dimension is not None else None

    def fill(self, found: Iterable[Any] | None, seed: int | None = None) -> None:
        """Copy them in; `seed` is what they were made of. None: nothing is to change."""
        if found is None:
            return
        with torch.no_grad():
            for leaf, new in zip(self._leaves, found, strict=True):
                if isinstance(leaf, Tensor):
                    leaf.copy_(new)
        self._seed = seed

    def _of_client(self, found: list[Any]) -> list[Any]:
        for first, one in zip(self._repeats, found, strict=True):
            if found[first] is not one and not torch.equal(found[first], one):
                raise WrongInputs("inputs", "two of them are one tensor of the module: send them alike")
        return found

    def cloned(self) -> ModuleArguments:
        """The arguments in tensors of their own, one for each that is given several times."""
        clones = {id(leaf): leaf.clone() for leaf in self._leaves if isinstance(leaf, Tensor)}
        args, kwargs = tree_unflatten([clones.get(id(leaf), leaf) for leaf in self._leaves], self._tree)
        return args, kwargs

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors among them, by name."""
        args, kwargs = self.arguments
        for name, leaf in [*leaves(args, "inputs"), *leaves(kwargs, "inputs")]:
            if isinstance(leaf, Tensor):
                yield name, leaf

    def __str__(self) -> str:
        return _described(self.arguments)


def _repeats(leaves: list[Any]) -> list[int]:
    """Of each leaf the place at which the same tensor stands first; its own where it is no tensor."""
    first: dict[int, int] = {}
    return [
        first.setdefault(id(leaf), place) if isinstance(leaf, Tensor) else place
        for place, leaf in enumerate(leaves)
    ]


class ModuleInputs:
    """Fulfils `StepInputs` for `user`'s module at `batch`: the inputs of each of its sizes, or the only ones.

    Each size is a shape that is compiled for. Raises what `ShapeInputs` raises.
    """

    def __init__(self, user: UserModule, batch: int) -> None:
        self.by_size = {size: ShapeInputs(user, batch, size) for size in user.sizes or (None,)}
        self.first = next(iter(self.by_size.values()))

    @property
    def apart(self) -> int:
        return len(self.by_size)

    def of(self, size: str | None) -> ShapeInputs:
        """Those of `size`; None: of the first. Raises WrongInputs."""
        if size is None:
            return self.first
        if size not in self.by_size:
            sizes = ", ".join(one for one in self.by_size if one is not None)
            raise WrongInputs("size", f"send one of {sizes}" if sizes else "there is none: leave it out")
        return self.by_size[size]

    def prepare(self) -> None:
        for one in self.by_size.values():
            one.prepare()

    def shapes(self, phase: Phase) -> Iterator[ModuleArguments]:
        for one in self.by_size.values():
            yield one.arguments

    def measured(self, phase: Phase) -> ModuleArguments:
        """Those of the first size."""
        self.prepare()
        return self.first.arguments

    def owned(self) -> Iterator[tuple[InputKind, str, Tensor]]:
        for one in self.by_size.values():
            for name, tensor in one.tensors():
                yield "input", name, tensor

    def varied(self) -> Iterator[ModuleArguments]:
        """Those of OTHER_SEEDS, one after the other in the same tensors."""
        for one in self.by_size.values():
            for seed in OTHER_SEEDS:
                one.fill(one.of_seed(seed), seed)
                yield one.arguments

    def __str__(self) -> str:
        sized = [str(one) if size is None else f"size {size}: {one}" for size, one in self.by_size.items()]
        return ", ".join(sized)


def _described(arguments: Any) -> str:  # noqa: ANN401 - args and kwargs
    args, kwargs = arguments
    found = [*leaves(tuple(args), "inputs"), *leaves(dict(kwargs), "inputs")]
    return ", ".join(f"{name} {_kind(leaf)}" for name, leaf in found)


def _kind(leaf: object) -> str:
    return f"{dtype_name(leaf)} {list(leaf.shape)}" if isinstance(leaf, Tensor) else repr(leaf)


def _first_tensor(tree: Any) -> list[str | int] | None:  # noqa: ANN401 - any tree
    """What leads to the first tensor in `tree`, through lists and dicts; None where there is none."""
    parts: Iterable[tuple[str | int, Any]] = ()
    if isinstance(tree, dict):
        parts = ((str(name), part) for name, part in tree.items())
    elif isinstance(tree, tuple | list):
        parts = enumerate(tree)
    for key, part in parts:
        below = [] if isinstance(part, Tensor) else _first_tensor(part)
        if below is not None:
            return [key, *below]
    return None


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
