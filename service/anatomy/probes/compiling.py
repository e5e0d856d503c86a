"""Compiled steps of probes, with separate cache entries, and the compiler's counters and reasons."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons

from models.served import Cache
from service.anatomy.operators.guards import entries


def compiled(model: Callable[..., object], backend: str = "inductor") -> types.FunctionType:
    """`model` compiled without `fullgraph`, with a separate code object and so separate cache entries."""

    def probed(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> object:
        return model(tokens, positions, last, cache)

    own = types.FunctionType(
        probed.__code__.replace(), probed.__globals__, "probed", None, probed.__closure__
    )
    step: Any = torch.compile(own, dynamic=False, backend=backend)
    assert isinstance(step, types.FunctionType)
    return step


@dataclass(frozen=True, slots=True)
class Compilation:
    """The compiler's counts for the first call of a step, and a reason with its stack for each break."""

    breaks: int
    graphs: int
    reasons: list[Any]

    @property
    def first_reason(self) -> str:
        """The first line of the first break's reason."""
        return str(self.reasons[0].reason).splitlines()[0].rstrip(".") if self.reasons else "nothing"


def compile_counting(call: Callable[[], object]) -> Compilation:
    """Make the first call of a compiled step and count."""
    counters.clear()
    count = len(graph_break_reasons)
    call()
    breaks = sum(counters["graph_break"].values())
    graphs = counters["stats"]["unique_graphs"]
    return Compilation(breaks, graphs, graph_break_reasons[count:])


def recompiles(step: types.FunctionType) -> int:
    """Compiled entries of `step` after its first."""
    return len(entries(step)) - 1


def why_recompiled() -> str:
    """The compiler's text for the newest recompilation: the guard that failed, and a stack."""
    return str(get_compilation_metrics()[-1].recompile_reason)


def failed_guard(reason: str) -> str:
    """A sentence with the guard of `reason`."""
    return f"The guard that failed: {reason.splitlines()[0].split('#')[0].strip()}."


def seconds_of(call: Callable[[], object]) -> float:
    """Wall seconds of `call`."""
    began = perf_counter_ns()
    call()
    return (perf_counter_ns() - began) / 1e9


@contextmanager
def counters_kept() -> Iterator[None]:
    """Restores the compiler's counters and list of breaks, which are process-wide."""
    kept = {name: counter.copy() for name, counter in counters.items()}
    reasons = graph_break_reasons.copy()
    try:
        yield
    finally:
        counters.clear()
        counters.update(kept)
        graph_break_reasons[:] = reasons
