"""Bytes of tensors by storage, each counted once, and by owner: parameters, cache, …"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
from torch import Tensor

from service.measure.cases import Bench
from service.step.buffers import Buffers

OwnerKind = Literal["parameter", "buffer", "cache", "input", "intermediate"]
"""`intermediate`: made by the step itself, and kept alive by nothing but the tape."""

NO_OWNER: tuple[OwnerKind, None] = ("intermediate", None)


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A saved tensor of a grad_fn node. `storage` numbers storages: equal numbers are the same memory.

    `tensor_bytes` is the size of its elements, `storage_bytes` that of its storage: for a view, of its base.
    `of` names the parameter, buffer or input.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensor_bytes: int
    storage_bytes: int
    storage: int
    kind: OwnerKind
    of: str | None


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over saved tensors. `tensor_bytes` counts a tensor each time it is saved.

    `storage_bytes` counts each storage once, and `by_kind` splits it; `own_bytes` are the intermediates,
    which only the tape keeps alive.
    """

    tensors: int
    tensor_bytes: int
    storages: int
    storage_bytes: int
    by_kind: dict[OwnerKind, int]
    own_bytes: int


class Storages:
    """Numbers storages in order of first use; `owned` are the tensors that exist before the tape."""

    def __init__(self, owned: Iterable[tuple[OwnerKind, str, Tensor]]) -> None:
        self._owners: dict[int, tuple[OwnerKind, str | None]] = {}
        self._numbers: dict[int, int] = {}
        for kind, name, tensor in owned:
            self._owners.setdefault(_address(tensor), (kind, name))

    def saved(self, name: str, tensor: Tensor) -> SavedTensor:
        """Describe `tensor`, which must outlive the descriptions of others: addresses are reused."""
        address = _address(tensor)
        kind, of = self._owners.get(address, NO_OWNER)
        return SavedTensor(
            name=name,
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            tensor_bytes=tensor_bytes(tensor),
            storage_bytes=tensor.untyped_storage().nbytes(),
            storage=self._numbers.setdefault(address, len(self._numbers)),
            kind=kind,
            of=of,
        )


def held(saved: Iterable[SavedTensor]) -> Held:
    """The sums of `saved`."""
    every = list(saved)
    by_storage = {tensor.storage: tensor for tensor in every}.values()
    by_kind: dict[OwnerKind, int] = {}
    for tensor in by_storage:
        by_kind[tensor.kind] = by_kind.get(tensor.kind, 0) + tensor.storage_bytes
    return Held(
        tensors=len(every),
        tensor_bytes=sum(tensor.tensor_bytes for tensor in every),
        storages=len(by_storage),
        storage_bytes=sum(by_kind.values()),
        by_kind=by_kind,
        own_bytes=by_kind.get("intermediate", 0),
    )


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of all elements of `tensor`."""
    return tensor.numel() * tensor.element_size()


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages under `tensors`, each counted once."""
    return sum({_address(t): t.untyped_storage().nbytes() for t in tensors}.values())


def owned_by(bench: Bench, buffers: Buffers) -> Iterator[tuple[OwnerKind, str, Tensor]]:
    """Tensors that exist before a step of the served model: weights, buffers, cache and inputs."""
    for name, parameter in bench.model.named_parameters():
        yield "parameter", name, parameter
    for name, buffer in bench.model.named_buffers():
        yield "buffer", name, buffer
    for layer, (keys, values) in enumerate(buffers.cache):
        yield "cache", f"layer {layer} keys", keys
        yield "cache", f"layer {layer} values", values
    for length, chunk in buffers.chunks.items():
        yield "input", f"chunk of {length}", chunk
    for name in ("token", "positions", "last", "one"):
        yield "input", name, getattr(buffers, name)


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor in `value`, however deep in lists, tuples and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors_in(one)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
