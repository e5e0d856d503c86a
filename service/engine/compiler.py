"""The compiler's counters of this process, its start, and what it cannot compile."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from operator import sub
from types import ModuleType

import torch
from torch import Tensor
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters

from service.modes import Effect
from service.step.package import PACKAGES_MADE

OURS = "launchbound"
WRAPPERS, CPP_WRAPPERS, FROZEN = "wrappers", "cpp_wrappers", "frozen_wrappers"
"""Among torch's compile counters, in the group `launchbound`: what calls a graph's kernels, as it was loaded;
those of them that are C++; those that hold weights as constants.
"""

SETTINGS_OF_TORCH = ("TORCHDYNAMO_", "TORCH_DYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE_")
SET_HERE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """torch's own counters at one moment, or their increase between two; all since the process began.

    `cache_misses` counts what was compiled and not found: graphs, those that no cache can hold (weights that
    oneDNN has packed cannot be stored) and those of a process without caches among them, and packages.
    `graph_skips` counts the compiled callables for which torch gave up CUDA graphs. `wrappers` counts what
    Inductor has generated to call the kernels of a graph, loaded from the cache or made new.
    """

    cache_misses: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    graph_skips: int = 0
    wrappers: int = 0
    cpp_wrappers: int = 0
    frozen: int = 0

    def increase(self) -> CompileCounts:
        """How much has been added since this was read."""
        now = read_compile_counts()
        return CompileCounts(*map(sub, astuple(now), astuple(self)))


def read_compile_counts() -> CompileCounts:
    """The counters as they are now."""
    return CompileCounts(
        cache_misses=counters["stats"]["unique_graphs"]
        - counters["inductor"]["fxgraph_cache_hit"]
        + counters[OURS][PACKAGES_MADE],
        graphs=counters["stats"]["unique_graphs"],
        graph_breaks=sum(counters["graph_break"].values()),
        graph_skips=counters["inductor"]["cudagraph_skips"],
        wrappers=counters[OURS][WRAPPERS],
        cpp_wrappers=counters[OURS][CPP_WRAPPERS],
        frozen=counters[OURS][FROZEN],
    )


def load_compiler(device: torch.device) -> None:
    """Compile something trivial: the compiler's own start takes seconds and belongs to no mode's warm-up.

    From then on the wrappers that Inductor loads are counted.
    """
    _count_wrappers()
    torch.compile(_trivial)(torch.zeros(1, device=device))


def _count_wrappers() -> None:
    """Look at each module that torch loads, also from its cache: its own counters do not have them."""
    from torch._inductor.codecache import PyCodeCache  # takes seconds, so only where something compiles

    load = PyCodeCache.load_by_key_path
    if getattr(load, "counts", False):
        return

    def counting(*arguments: object, **named: object) -> ModuleType:
        module: ModuleType = load(*arguments, **named)  # type: ignore[arg-type]
        if hasattr(module, "call"):  # kernels are loaded in modules of their own
            counters[OURS][WRAPPERS] += 1
            counters[OURS][CPP_WRAPPERS] += hasattr(module, "inductor_entry")
            counters[OURS][FROZEN] += any(name.startswith("_frozen_param") for name in vars(module))
        return module

    counting.counts = True  # type: ignore[attr-defined]
    PyCodeCache.load_by_key_path = staticmethod(counting)  # type: ignore[method-assign]


def turned_off() -> str | None:
    """Why `torch.compile` compiles nothing in this process, with the remedy; None where it does."""
    if not dynamo_config.disable and os.environ.get("TORCHDYNAMO_DISABLE") != "1":
        return None
    return f"torch.compile is turned off, so nothing would be compiled: {_remedy()}"


def unlike(effect: Effect, callables: int, seen: CompileCounts) -> str | None:
    """Why what was `seen` while `callables` were captured is not what the row says; None where it is."""
    if effect.compile is None:
        return None  # a package is loaded, or raises
    if seen.graphs < callables:
        found = f"of {callables} callables {seen.graphs} were compiled"
    elif seen.wrappers < callables:
        found = f"of {callables} callables {seen.wrappers} were compiled by Inductor"
    elif seen.cpp_wrappers != (seen.wrappers if effect.cpp_wrapper else 0):
        found = f"{seen.cpp_wrappers} of {seen.wrappers} wrappers are C++"
    elif bool(seen.frozen) != effect.freezes:
        found = f"{seen.frozen} of {seen.wrappers} graphs have the weights as constants"
    else:
        return None
    return f"this is not what {effect.name} is: {found}; {_remedy()}"


def _remedy() -> str:
    """Names the variables of the environment by which torch's compiler is set, with their values."""
    names = sorted(name for name in os.environ if name.startswith(SETTINGS_OF_TORCH) and name != SET_HERE)
    settings = ", ".join(f"{name}={os.environ[name]}" for name in names)
    return f"start the service without {settings}" if settings else "leave the mode out"


def _trivial(x: Tensor) -> Tensor:
    return x + 1


def not_one_graph(error: Unsupported, plain: Sequence[str]) -> str:
    """Why a mode that compiles has failed, and which of the configured modes, `plain`, compile nothing."""
    remain = f"what remains: {', '.join(plain)}" if plain else "no configured mode remains: add eager"
    return f"this model cannot be compiled as one graph; {remain}. {error}"[:2000]
