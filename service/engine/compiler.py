"""The compiler of this process: its counters, what it cannot compile, and what is kept of earlier starts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator, Sequence
from dataclasses import astuple, dataclass
from operator import sub
from pathlib import Path
from tempfile import TemporaryDirectory
from traceback import FrameSummary
from types import ModuleType
from typing import TypeVar

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.exc import ShortenTraceback, TorchDynamoException, Unsupported
from torch._dynamo.utils import (
    clear_compilation_metrics,
    counters,
    get_compilation_metrics,
    graph_break_reasons,
)
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from models.user_code import place_of
from service.engine.start_times import START
from service.measure.compiled_library import BuildError, compiled_library
from service.modes import Effect
from service.step.callables import PACKAGES_MADE
from service.step.compile_cache import (
    CacheRefused,
    discard,
    has_code,
    keep_record,
    read_record,
    record_file,
    warn,
)
from service.step.device import is_device_lost, is_out_of_memory

OURS = "launchbound"
WRAPPERS, CPP_WRAPPERS, FROZEN = "wrappers", "cpp_wrappers", "frozen_wrappers"
"""Our own counters among torch's: Inductor's wrappers loaded; those in C++; those with constant weights."""

SETTINGS_OF_TORCH = ("TORCHDYNAMO_", "TORCH_DYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE_")
SET_HERE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """torch's own counters since the process began, or their increase between two moments.

    `graph_skips`: compiled callables for which torch gave up CUDA graphs. `wrappers`: what Inductor generated
    to call the kernels of a graph.
    """

    cache_misses: int = 0
    graphs: int = 0
    graph_breaks: int = 0
    graph_skips: int = 0
    wrappers: int = 0
    cpp_wrappers: int = 0
    frozen: int = 0

    def increase(self) -> CompileCounts:
        now = read_compile_counts()
        return CompileCounts(*map(sub, astuple(now), astuple(self)))


def read_compile_counts() -> CompileCounts:
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
    """Compile something trivial: the compiler's start takes seconds and belongs to no mode."""
    with START.phase("import"):
        import torch._inductor.compile_fx

        _count_wrappers()
    START.follow_compiler()
    torch.compile(lambda x: x + 1)(torch.zeros(1, device=device))


def _count_wrappers() -> None:
    """Count each module that torch loads, also from its cache: its own counters do not have them."""
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
    """Why `torch.compile` can compile nothing in this process, with the remedy; None where it can."""
    if dynamo_config.disable or os.environ.get("TORCHDYNAMO_DISABLE") == "1":
        return f"torch.compile is turned off, so nothing would be compiled: {_remedy()}"
    return None


def unlike(
    effect: Effect, callables: int, seen: CompileCounts, breaks: GraphBreaks | None = None
) -> str | None:
    """Why what was `seen` while `callables` were captured is not what the row says; None where it is."""
    if effect.compile is None:
        return None  # a package is loaded, or raises
    if breaks is not None and not seen.graphs:
        remedy = "" if breaks.hint else "; leave the mode out"
        return f"torch.compile compiles nothing of this module, which {breaks}{remedy}"
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
    broken = f"; the module {breaks}" if breaks is not None else ""
    return f"this is not what {effect.name} is: {found}; {_remedy()}{broken}"


def _remedy() -> str:
    """Names the variables of the environment by which torch's compiler is set, with their values."""
    names = sorted(name for name in os.environ if name.startswith(SETTINGS_OF_TORCH) and name != SET_HERE)
    settings = ", ".join(f"{name}={os.environ[name]}" for name in names)
    return f"start the service without {settings}" if settings else "leave the mode out"


def not_one_graph(error: Unsupported, plain: Sequence[str]) -> str:
    """Why a mode that compiles has failed, and which of the configured modes, `plain`, compile nothing."""
    remain = f"what remains: {', '.join(plain)}" if plain else "no configured mode remains: add eager"
    return f"this model cannot be compiled as one graph; {remain}. {error}"[:2000]


class GraphBreaks:
    """Where a mode's callables break the graph, as Dynamo lists it between `begin` and `end`.

    `count` is the most that one callable has: one less than its graphs, and at least one per line, as what
    follows a break need not be compiled. `given_up`, which all modes share: by line why Dynamo leaves out the
    whole function that has it. It tries that once in a process, and lists it in its metrics alone.
    """

    def __init__(self, given_up: dict[str, str]) -> None:
        self.count = 0
        self.places: list[str] = []
        self.hint = ""
        self._given_up = given_up
        self._listed = 0

    def begin(self) -> None:
        self._listed = len(graph_break_reasons)
        clear_compilation_metrics()

    def end(self, graphs: int) -> None:
        """`graphs` were compiled since `begin`."""
        listed = graph_break_reasons[self._listed :]
        for one in get_compilation_metrics():
            if one.fail_type is not None:
                file, line = one.fail_user_frame_filename or "", one.fail_user_frame_lineno
                place = place_of([FrameSummary(file, line, "", lookup_line=False)])
                self._given_up[place] = str(one.fail_reason)
        found = dict.fromkeys([*(place_of(one.user_stack) for one in listed), *self._given_up])
        found.pop("", None)
        self.count = max(self.count, graphs - 1, len(found), 1)
        self.places += [place for place in found if place not in self.places]
        reasons = [*(str(one.reason) for one in listed), *self._given_up.values()]
        if any("allow_rnn" in reason for reason in reasons):
            self.hint = RECURRENT

    def __str__(self) -> str:
        times = "once" if self.count == 1 else f"{self.count} times"
        more = f", and {len(self.places) - MOST_PLACES} more" if len(self.places) > MOST_PLACES else ""
        places = ", ".join(self.places[:MOST_PLACES]) or "in an unknown line"
        return f"breaks the graph {times}: {places}{more}{self.hint}"


MOST_PLACES = 5
"""Of breaks that a reason names."""

RECURRENT = (
    "; torch.compile leaves nn.LSTM, nn.GRU and nn.RNN out: set torch._dynamo.config.allow_rnn = True in the "
    "file of the factory to have them compiled"
)


Result = TypeVar("Result")


class CacheBroken(Exception):
    """A mode failed on compiled code from before this process, which has been removed."""


class CacheRetry:
    """The compiled code of one model in `code` as this process found it; `key` names what it compiles.

    What fails on code from before is tried again without it, once per mode, in a new process, as torch
    remembers what it tried. What fails there too is recorded, so that no later start removes the code again.
    """

    def __init__(self, code: Path, key: str) -> None:
        self._had_code = has_code(code)
        self._code = code
        self._file = record_file(code.parent, key, "failed")
        self._failed = read_record(self._file, list[str]) or []

    def watched(self, mode: str, capture: Generator[None, None, Result]) -> Generator[None, None, Result]:
        """Do `capture`, which compiles for `mode`. Raises what it raises, BuildError, or CacheBroken."""
        try:
            return (yield from capture)
        except Exception as error:
            if _is_of_the_model(error) or is_device_lost(error) or is_out_of_memory(error):
                raise
            if reason := cannot_compile(self._code.parent):
                raise BuildError(f"{reason} ({type(error).__name__}: {error})") from error
            self.failed(mode)
            raise

    def judged(self, mode: str, passed: bool) -> None:
        """`mode` was compiled, and its numbers `passed`: damaged code may compute something else."""
        if not passed:
            self.failed(mode)
        elif mode in self._failed:
            self._failed.remove(mode)
            keep_record(self._file, self._failed)

    def failed(self, mode: str) -> None:
        """`mode` failed. Removes the code, and raises CacheBroken, where that may be why."""
        if mode in self._failed:
            return
        if self._had_code:
            try:
                discard(self._code)
            except CacheRefused as refusal:
                warn(str(refusal))  # without that there is nothing to try again
                return
            raise CacheBroken(f"mode {mode} failed on compiled code of an earlier start")
        self._failed.append(mode)
        keep_record(self._file, self._failed)


def _is_of_the_model(error: Exception) -> bool:
    """Whether it was raised in tracing the model, before a compiler or its cache was asked."""
    traced = isinstance(error, TorchDynamoException) and not isinstance(error, ShortenTraceback)
    return traced or isinstance(error, ConstraintViolationError)


def cannot_compile(folder: Path) -> str | None:
    """Why no C++ can be compiled in `folder` and loaded from it, with the remedy; None where it can."""
    try:
        with TemporaryDirectory(dir=folder) as trial:
            source = 'extern "C" int trial() { return 0; }'
            ctypes.CDLL(str(compiled_library(Path(trial), "trial", source, compiler=get_cpp_compiler())))
    except InvalidCxxCompiler:
        return "the C++ compiler is not there: install g++, or set CXX to one that is"
    except (BuildError, OSError) as error:
        return f"what is compiled cannot be made or loaded: {error}"
    return None


class ColdStarts:
    """Seconds that each callable took from an empty cache, for one model, dtype and set of sizes (`key`)."""

    def __init__(self, folder: Path, key: str) -> None:
        self._file = record_file(folder, key, "cold_starts")
        self._seconds = read_record(self._file, dict[str, float]) or {}

    def recorded(self, name: str, cold_seconds: float | None) -> float | None:
        """What `name` took from an empty cache: `cold_seconds`, which is kept, or what was; None: unknown."""
        if cold_seconds is not None:
            # Read again: a second compiler adds to the same record.
            self._seconds |= (read_record(self._file, dict[str, float]) or {}) | {name: cold_seconds}
            keep_record(self._file, self._seconds)
        return self._seconds.get(name)
