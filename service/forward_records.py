"""The structs of calls of a user's module that cross a process border, as those of `service.records`."""

from __future__ import annotations

import msgspec


class ForwardWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a module is to be called on, `calls` times in a row, in place of prompts.

    On inputs that it has itself for a batch of `batch_size`, by `seed`; or on those that were sent, of which
    the engine alone knows dtypes and shapes: `inputs`, the JSON of a list or an object of nested lists, or
    `safetensors`, a file of that format. `size`: one of the module's sizes but the first, which None is.
    `outputs`: the results of the last call are answered. `compare`: they are compared with those of eager.
    """

    batch_size: int
    size: str | None = None
    seed: int = 0
    calls: int = 1
    inputs: bytes | None = None
    safetensors: bytes | None = None
    outputs: bool = False
    compare: bool = False

    @property
    def sent(self) -> str | None:
        """The field that has the inputs; None: the module makes them by `seed`."""
        given = {"inputs": self.inputs, "safetensors": self.safetensors}
        return next((name for name, content in given.items() if content is not None), None)


class BatchPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the inputs of a module have the batch: in the dimension `dimension` of the tensor at `path`, the
    names and indexes that lead to it from the arguments.
    """

    path: list[str | int]
    dimension: int = 0
