"""A CUDA graph on a CPU: operators recorded with the tensors that they had, replayed into the same memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

Result = tuple[Tensor, Tensor]
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]


class FakeGraphs:
    """Records as `record_cuda_graph` does. `recorded` counts graphs, `replayed` replays.

    As in a real graph, nothing of Python runs at a replay, and a tensor is what its memory then holds.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, run: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        run()
        calls: list[Call] = []
        with _Recording(calls):
            result = run()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad():
                for func, arguments, options, outputs in calls:
                    _write(outputs, func(*arguments, **options))

        return replay, result


class _Recording(TorchDispatchMode):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        outputs = func(*args, **options)
        self._calls.append((func, args, options, outputs))
        return outputs


def _write(into: object, new: object) -> None:
    """The values of `new` into the tensors of `into`; a view writes its own memory onto itself."""
    for target, value in zip(tree_flatten(into)[0], tree_flatten(new)[0], strict=True):
        if isinstance(target, Tensor) and target.data_ptr() != value.data_ptr():
            target.copy_(value)
