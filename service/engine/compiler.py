"""The compiler's counters of this process, its start, and what it cannot compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from service.step.package import PACKAGES_MADE


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """torch's own counters at one moment, or their increase between two; all since the process began.

    `cache_misses` counts what was compiled and not found: graphs, those that no cache can hold (weights that
    oneDNN has packed cannot be stored) among them, and packages. `graph_skips` counts the compiled callables
    for which torch gave up CUDA graphs.
    """

    cache_misses: int
    graphs: int
    graph_breaks: int
    graph_skips: int

    def increase(self) -> CompileCounts:
        """How much has been added since this was read."""
        now = read_compile_counts()
        return CompileCounts(
            now.cache_misses - self.cache_misses,
            now.graphs - self.graphs,
            now.graph_breaks - self.graph_breaks,
            now.graph_skips - self.graph_skips,
        )


def read_compile_counts() -> CompileCounts:
    """The counters as they are now."""
    return CompileCounts(
        cache_misses=counters["inductor"]["fxgraph_cache_miss"]
        + counters["inductor"]["fxgraph_cache_bypass"]
        + counters["launchbound"][PACKAGES_MADE],
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
        graph_skips=counters["inductor"]["cudagraph_skips"],
    )


def load_compiler(device: torch.device) -> None:
    """Compile something trivial: the compiler's own start takes seconds and belongs to no mode's warm-up."""
    torch.compile(_trivial, fullgraph=True)(torch.zeros(1, device=device))


def _trivial(x: Tensor) -> Tensor:
    return x + 1


def not_one_graph(error: Unsupported, plain: Sequence[str]) -> str:
    """Why a mode that compiles has failed, and which of the configured modes, `plain`, compile nothing."""
    remain = f"what remains: {', '.join(plain)}" if plain else "no configured mode remains: add eager"
    return f"this model cannot be compiled as one graph; {remain}. {error}"[:2000]
