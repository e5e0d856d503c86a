"""Keeps the CPU's caches as cold for a hollow step as the served model's weights make them for a real one."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch import nn

from service.protocol.modes import Mode

LARGEST_BYTES = 256 * 2**20
"""Enough to empty any cache hierarchy: for a larger model every share is scaled down to this sum per step."""


def issued_by_operator(mode: Mode, device_type: str) -> bool:
    """Whether the host issues a step of `mode` operator by operator, so that every module's forward runs."""
    return mode.effect(device_type).by_operator


def weights_by_reader(model: nn.Module) -> dict[str, int]:
    """Bytes of weights that a decode step takes through the caches, by the name of their module.

    An embedding reads one row of its table per token and is left out.
    """
    sizes = {
        name: sum(p.numel() * p.element_size() for p in module.parameters(recurse=False) if p.dim() > 1)
        for name, module in model.named_modules()
        if not isinstance(module, nn.Embedding)
    }
    return {name: size for name, size in sizes.items() if size}


class ColdCacheEmulation:
    """Reads as many bytes as `model` has weights, where a step of it would.

    In a real step the weights evict the host's own code and data from the caches; those of a hollow step are
    too small for that. Where the host issues operator by operator, each module reads its share before it
    runs (`patch_modules`), off the step's clock: `reading_ns` is the sum of what that took. A compiled step
    is one call, and everything is read before it (`evict`).
    """

    def __init__(self, model: nn.Module) -> None:
        self._shares = weights_by_reader(model)
        total = sum(self._shares.values())
        self._scale = min(1.0, LARGEST_BYTES / max(total, 1))
        # Written, not calloc'ed: untouched pages would all be one physical page, which evicts nothing.
        self._weights = bytearray(b"\1") * int(total * self._scale)
        self.reading_ns = 0

    def evict(self, own_bytes: int = 0) -> None:
        """Read all of it, less `own_bytes`, which the step to follow reads itself."""
        self._read(0, max(len(self._weights) - int(own_bytes * self._scale), 0))

    def patch_modules(self, twin: nn.Module) -> nn.Module:
        """Make each module of `twin` read as many bytes as its weights are smaller than in the real model.

        Modules are matched by name. Returns `twin`; raises AttributeError where it lacks one of the names.
        """
        begin = 0
        own = weights_by_reader(twin)
        for name, size in self._shares.items():
            end = begin + int(max(size - own.get(name, 0), 0) * self._scale)
            if end > begin:
                module = twin.get_submodule(name)
                # Not a hook: with one, every call of the module would take torch's slower way.
                module.forward = self._reading(module.forward, begin, end)
            begin = end
        return twin

    def _reading(self, forward: Callable[..., Any], begin: int, end: int) -> Callable[..., Any]:
        def read_then_forward(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - any module's own
            began = perf_counter_ns()
            self._read(begin, end)
            self.reading_ns += perf_counter_ns() - began
            return forward(*arguments, **options)

        return read_then_forward

    def _read(self, begin: int, end: int) -> None:
        """By a search for a byte that does not occur: next to no code runs, and none of torch's."""
        self._weights.find(0, begin, end)
