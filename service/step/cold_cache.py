"""Keeps the host as cold around a hollow step as the served model's weights make it around a real one."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from torch import nn

from service.protocol.modes import Mode

LARGEST_BYTES = 256 * 2**20
"""Enough to empty any cache hierarchy; of a larger model no more is read per step, shares in proportion."""


def issued_by_operator(mode: Mode, device_type: str) -> bool:
    """Whether the host issues a step of `mode` operator by operator, so that it comes by every module."""
    return mode.effect(device_type).compile is None


def weights_by_reader(model: nn.Module) -> dict[str, int]:
    """Bytes of weights that a decode step takes through the caches, by the name of the module that has them.

    An embedding reads one row of its table per token and is left out.
    """
    sizes = {
        name: sum(p.numel() * p.element_size() for p in module.parameters(recurse=False) if p.dim() > 1)
        for name, module in model.named_modules()
        if not isinstance(module, nn.Embedding)
    }
    return {name: size for name, size in sizes.items() if size}


class ColdCache:
    """Reads as many bytes as `model` has weights, where a step of it would.

    In a real step the weights push the host's own code and data out of the caches; a hollow one has none to
    speak of. Where the host comes by every module (`into`), each reads its share before it runs, off the
    step's clock: `paused_ns` adds up what that took. A compiled step is one call, and everything is read
    before it (`before`).
    """

    def __init__(self, model: nn.Module) -> None:
        self._shares = weights_by_reader(model)
        total = sum(self._shares.values())
        self._scale = min(1.0, LARGEST_BYTES / max(total, 1))
        # Written, not calloc'ed: untouched pages would all be one physical page, which no cache minds.
        self._weights = bytearray(b"\1") * int(total * self._scale)
        self.paused_ns = 0

    def before(self, own_bytes: int = 0) -> None:
        """Read all of it, less `own_bytes`, which the step to follow reads itself."""
        self._read(0, max(len(self._weights) - int(own_bytes * self._scale), 0))

    def into(self, twin: nn.Module) -> nn.Module:
        """Make the modules of `twin` read what they have less than those of the same names in the real model.

        Returns `twin`. Raises AttributeError where it has no module of such a name.
        """
        begin, own = 0, weights_by_reader(twin)
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
            self.paused_ns += perf_counter_ns() - began
            return forward(*arguments, **options)

        return read_then_forward

    def _read(self, begin: int, end: int) -> None:
        """By a search for what is not in it: next to no code runs, and none of torch's."""
        self._weights.find(0, begin, end)
