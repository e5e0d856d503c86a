"""A module of the user's own, by the name of its factory: loaded, checked, and with inputs of any batch."""

from __future__ import annotations

import hashlib
import inspect
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_flatten, tree_map_only

from models.hf import files
from models.naming import ModuleError, find_source
from models.user_code import code_files, explain, import_source, leaving_no_process, running

__all__ = ["Example", "ModuleError", "UserModule", "explain", "load_module"]

_SHAPE = "return model, inputs, where inputs(batch, seed) gives a tuple or a dict of tensors"


class Example(NamedTuple):
    """What a module is called on: `module(*args, **kwargs)`. Tensors may lie anywhere in the two."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class UserModule:
    """`module` in evaluation mode, on its device; its parameters require grad as its factory left them.

    `inputs(batch, seed, size)` makes tensors of its own at each call, the same for the same seed, and raises
    ModuleError where the user's function fails or gives another batch. `size` is one of `sizes`, the names of
    what else varies; None: the first, or that nothing does. `content_hash` is that of the user's code and of
    the weights, `tolerance` that of parity, relative; None: by dtype. `batch_dimension` is that of the first
    tensor; None: no dimension of it is the batch, as of graphs that are joined to one.
    """

    module: nn.Module
    inputs: Callable[[int, int, str | None], Example]
    name: str
    content_hash: str
    tolerance: float | None = None
    batch_dimension: int | None = 0
    sizes: tuple[str, ...] = ()


MOST_SIZES = 8
"""So many graphs of one function torch.compile keeps: each size takes one."""


class _Said(NamedTuple):
    """What the factory returned."""

    model: Any
    inputs: Any
    name: str
    batch_dimension: int | None
    tolerance: float | None
    sizes: tuple[int | str, ...] = ()


def load_module(name: str, device: torch.device, dtype: torch.dtype) -> UserModule:
    """The module that the factory called `name` builds (see `models.naming`), floating point in `dtype`.

    The factory is a function without arguments that returns `model, inputs`, or any object with these two as
    attributes, and, if it likes, `name`, `batch_dimension`, `tolerance` and `sizes`: for each of these it is
    called as `inputs(batch, seed, size)`. torch is seeded before it runs.
    An encoder's `hf:FOLDER` has inputs by its configuration. Raises ModuleError, or for such a folder
    CheckpointError: one line with the remedy, whatever is wrong with it.
    """
    torch.manual_seed(0)
    if name.startswith(files.PREFIX):
        return _encoder(name, device, dtype)
    source = find_source(name)
    module = import_source(source)
    build = _attribute(module, source.factory, name)
    _refuse_signature(build, (), f"{name} is called without arguments", "give each a default")
    with running(f"{name}()"), leaving_no_process(f"{name}()"):
        returned = build()
    said = _said(returned, name)
    _check_model(said.model, name)
    called = (1, 0, *said.sizes[:1])
    form = "inputs(batch, seed, size)" if said.sizes else "inputs(batch, seed)"
    remedy = f"take these {'three' if said.sizes else 'two'}"
    _refuse_signature(said.inputs, called, f"inputs of {name} is called as {form}", remedy)
    files_of_user = code_files(source.root, module.__name__.partition(".")[0])
    return _placed(said, [file.read_bytes() for file in files_of_user], device, dtype)


def _encoder(name: str, device: torch.device, dtype: torch.dtype) -> UserModule:
    try:
        encoders = import_module("models.hf.encoders")
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise files.missing_library() from error
    encoder: UserModule = encoders.load(files.folder_of(name), name, device, dtype)
    return encoder


def library_module(
    name: str, model: nn.Module, inputs: Callable[[int, int], Any], device: torch.device, dtype: torch.dtype
) -> UserModule:
    """The same of a `model` that is made of installed code, such as that of `transformers`."""
    return _placed(_Said(model, inputs, name, 0, None), [], device, dtype)


def _placed(said: _Said, code: list[bytes], device: torch.device, dtype: torch.dtype) -> UserModule:
    content = _content_hash(said.model, code)
    with running(f"moving the module of {said.name} to {device}"):
        # Not `to(dtype)`, which would drop the imaginary part of complex parameters.
        said.model._apply(lambda tensor: _moved(tensor, device, dtype))
    floats = any(tensor.is_floating_point() for tensor in _tensors(said.model))
    inputs = _Inputs(said, floats, device, dtype)
    sizes = tuple(map(str, said.sizes))
    return UserModule(said.model, inputs, said.name, content, said.tolerance, said.batch_dimension, sizes)


def _attribute(module: Any, factory: str, name: str) -> Any:  # noqa: ANN401 - a stranger's
    found = module
    for part in factory.split("."):
        if not hasattr(found, part):
            functions = [one for one, value in vars(module).items() if inspect.isfunction(value)]
            has = f" (it has {', '.join(functions[:5])})" if functions else ""
            raise ModuleError(f"{name}: there is no '{factory}' in it{has}: name a function to {_SHAPE}")
        found = getattr(found, part)
    if not callable(found):
        raise ModuleError(f"{name} is no function but {_kind(found)}: name a function to {_SHAPE}")
    return found


def _refuse_signature(function: Any, arguments: tuple[int | str, ...], what: str, remedy: str) -> None:  # noqa: ANN401
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one written in C has none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ModuleError(
            f"{what}, and it has ({', '.join(signature.parameters)}; {error}): {remedy}"
        ) from None


def _said(returned: Any, name: str) -> _Said:  # noqa: ANN401
    """What the factory returned, its optional parts checked. Raises ModuleError."""
    if isinstance(returned, tuple) and len(returned) == 2:
        said = _Said(*returned, name, 0, None)
    elif hasattr(returned, "model") and hasattr(returned, "inputs"):
        said = _Said(
            returned.model,
            returned.inputs,
            getattr(returned, "name", None) or name,
            getattr(returned, "batch_dimension", 0),
            getattr(returned, "tolerance", None),
            _sizes(getattr(returned, "sizes", ()), name),
        )
    else:
        raise ModuleError(f"{name}() returned {_kind(returned)}: {_SHAPE}")
    if not callable(said.inputs):
        raise ModuleError(f"{name}() returned {_kind(said.inputs)} in place of a function inputs: {_SHAPE}")
    dimension = said.batch_dimension
    if dimension is not None and not (isinstance(dimension, int) and dimension >= 0):
        raise ModuleError(f"{name}(): batch_dimension is {dimension!r}: give 0, 1, 2, … or None")
    if said.tolerance is not None and not (isinstance(said.tolerance, float) and 0 < said.tolerance < 1):
        raise ModuleError(f"{name}(): tolerance is {said.tolerance!r}: give a number between 0.0 and 1.0")
    if not isinstance(said.name, str):
        raise ModuleError(f"{name}(): name is {said.name!r}: give a text")
    return said


def _sizes(said: Any, name: str) -> tuple[int | str, ...]:  # noqa: ANN401
    """Raises ModuleError."""
    remedy = f"give a tuple of up to {MOST_SIZES} different whole numbers or short texts, such as (128, 512)"
    if not isinstance(said, tuple | list):
        raise ModuleError(f"{name}(): sizes is {said!r}: {remedy}")
    for size in said:
        fits = isinstance(size, str) and 0 < len(size) <= 32 and size.isprintable()
        if not fits and type(size) is not int:
            raise ModuleError(f"{name}(): {size!r} is in sizes: {remedy}")
    if len(said) > MOST_SIZES or len(set(map(str, said))) < len(said):
        raise ModuleError(f"{name}(): sizes is {said!r}: {remedy}")
    return tuple(said)


def _check_model(model: Any, name: str) -> None:  # noqa: ANN401
    if not isinstance(model, nn.Module):
        raise ModuleError(f"{name}() returned {_kind(model)} in place of a torch.nn.Module: {_SHAPE}")
    if hasattr(model, "_orig_mod"):
        raise ModuleError(f"{name}() returned a compiled module: return it as it is, the modes compile it")
    training = [path or "the module itself" for path, part in model.named_modules() if part.training]
    if training:
        raise ModuleError(
            f"the module of {name} is in training mode ({training[0]}), where dropout and batch norm compute "
            "something else: call .eval() on it as the last thing before it is returned"
        )
    for path, tensor in chain(model.named_parameters(), model.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ModuleError(f"{path} of {name} has no size yet: call the module once in the factory")
        if tensor.is_meta:
            raise ModuleError(f"{path} of {name} is on the device meta and has no values: load its weights")
        if tensor.is_inference():
            raise ModuleError(
                f"{path} of {name} was made under inference_mode, and could not be used in eager mode: "
                "build the module outside it"
            )


def _tensors(model: nn.Module) -> Iterator[Tensor]:
    return chain(model.parameters(), model.buffers())


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)


def _kind(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"an object of type {type(value).__name__}"


@dataclass(frozen=True)
class _Inputs:
    """Calls the user's `inputs` and checks what it gives.

    `floats`: the module itself has some. `grown` has the batches that are known to be more than one sample.
    """

    said: _Said
    floats: bool
    device: torch.device
    dtype: torch.dtype
    grown: set[int] = field(default_factory=set)

    def __call__(self, batch: int, seed: int, size: str | None = None) -> Example:
        given = [one for one in self.said.sizes if size in (None, str(one))][:1]
        what = f"inputs({', '.join(map(repr, (batch, seed, *given)))}) of {self.said.name}"
        torch.manual_seed(seed)
        with running(what):
            example = _example(self.said.inputs(batch, seed, *given), what)
            self._check(example, batch, given, what)
            copies: dict[int, Tensor] = {}
            owned: Example = tree_map_only(Tensor, partial(self._own, copies), example)
            return owned

    def _own(self, copies: dict[int, Tensor], tensor: Tensor) -> Tensor:
        """A copy: the user's may be kept and given again, but what a job is fed is written over. Of a tensor
        that is given twice there is one.
        """
        if id(tensor) not in copies:
            dtype = self.dtype if tensor.is_floating_point() else tensor.dtype
            copies[id(tensor)] = tensor.detach().to(self.device, dtype, copy=True)
        return copies[id(tensor)]

    def _check(self, example: Example, batch: int, size: list[int | str], what: str) -> None:
        leaves = tree_flatten(example)[0]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if not tensors:
            kinds = ", ".join(sorted({type(leaf).__name__ for leaf in leaves})) or "nothing"
            raise ModuleError(
                f"{what} gives no tensor but {kinds}: make tensors of it, as by torch.as_tensor"
            )
        self._check_batch(tensors, batch, size, what)
        if not self.floats and not any(tensor.is_floating_point() for tensor in tensors):
            raise ModuleError(
                f"neither the module nor {what} has a floating point tensor: give one that computes with them"
            )

    def _check_batch(self, tensors: list[Tensor], batch: int, size: list[int | str], what: str) -> None:
        shape, dimension = list(tensors[0].shape), self.said.batch_dimension
        if dimension is None:
            self._check_growth(tensors, batch, size, what)
        elif len(shape) <= dimension or shape[dimension] != batch:
            raise ModuleError(
                f"{what} gives a first tensor of shape {shape}, whose dimension {dimension} is not the batch "
                f"of {batch}: make it so, or return types.SimpleNamespace(model=…, inputs=…, "
                "batch_dimension=N), N being the batch's dimension in that tensor, None if it has none"
            )

    def _check_growth(self, tensors: list[Tensor], batch: int, size: list[int | str], what: str) -> None:
        """Raises ModuleError where a batch that no dimension shows has no more numbers than one sample."""
        if batch == 1 or batch in self.grown:
            return
        torch.manual_seed(0)
        one = tree_flatten(_example(self.said.inputs(1, 0, *size), what))[0]
        alone = sum(leaf.numel() for leaf in one if isinstance(leaf, Tensor))
        if sum(tensor.numel() for tensor in tensors) <= alone:
            raise ModuleError(
                f"{what} gives no more numbers than inputs(1, 0), and its batch_dimension is None: "
                f"make tensors of {batch} samples"
            )
        self.grown.add(batch)


def _example(made: Any, what: str) -> Example:  # noqa: ANN401
    if isinstance(made, Tensor):
        return Example((made,), {})
    if isinstance(made, tuple | list):
        return Example(tuple(made), {})
    if isinstance(made, Mapping) and all(isinstance(key, str) for key in made):
        return Example((), dict(made))
    raise ModuleError(
        f"{what} gives {_kind(made)}: return a tuple of positional arguments or a dict of named ones"
    )


def _content_hash(model: nn.Module, code: list[bytes]) -> str:
    """Twelve hex digits of the user's code and of parameters and buffers, before they are moved and cast."""
    digest = hashlib.sha256()
    for content in code:
        digest.update(hashlib.sha256(content).digest())
    for path, tensor in chain(model.named_parameters(), model.named_buffers()):
        digest.update(f"{path} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(_bytes(tensor.detach()))
    return digest.hexdigest()[:12]


def _bytes(tensor: Tensor) -> Any:  # noqa: ANN401 - a buffer without a copy
    if tensor.layout is torch.strided and not tensor.is_quantized and type(tensor) is Tensor:
        return tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    stored = io.BytesIO()
    torch.save(tensor, stored)
    return stored.getbuffer()
