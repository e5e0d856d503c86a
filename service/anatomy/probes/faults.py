"""A step without and with a fault: how both are timed and compiled, the line to blame, what is restored."""

from __future__ import annotations

import gc
import inspect
import logging
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, NamedTuple

import msgspec
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons

from service.anatomy.common import StudyError
from service.anatomy.operators.calls import SourceLine
from service.anatomy.operators.compiled import entries
from service.measure.cases import AnyBench
from service.step.callables import AnyStep

WARM_PASSES = 3
"""Untimed calls before a timed one: the first ones after other code take longer."""

EVENTS = 6
"""Repeats where every faulty call compiles: the fewest that give a 95 % interval of the median."""


class Counter(msgspec.Struct, frozen=True):
    """A counter that the fault moves: its value in the step without it, and with it."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step: `call` is timed; `prepare` and `after` run before and after it, untimed."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    warm_passes: int = WARM_PASSES


@dataclass(frozen=True, slots=True)
class FaultComparison:
    """Both steps, warmed; `fault` has the line to blame. `most_repeats`: fewer, where each one compiles.
    `batch_size`, where it is another than that of the probed model.
    """

    without: TimedStep
    with_fault: TimedStep
    counter: Counter
    fault: Callable[..., object]
    notes: list[str] = field(default_factory=list)
    most_repeats: int | None = None
    batch_size: int | None = None


def step_seconds(step: TimedStep, synchronise: Callable[[], object]) -> float:
    """Until the device has finished, so that waits that a fault causes are in it."""
    if step.prepare is not None:
        step.prepare()
    for _ in range(step.warm_passes):
        step.call()
    synchronise()
    began = perf_counter_ns()
    step.call()
    synchronise()
    ended = perf_counter_ns()
    if step.after is not None:
        step.after()
    return (ended - began) / 1e9


def hidden_of(output: Any) -> Tensor:  # noqa: ANN401 - a tensor or a tuple
    """The hidden states that a layer returns, alone or first."""
    hidden: Tensor = output[0] if isinstance(output, tuple) else output
    return hidden


FAULT = "# the fault"
"""Ends the one line of a probe that is to blame."""


def line_of_fault(function: Callable[..., object]) -> str:
    """The line of `function` that ends with FAULT, as `file:number`."""
    lines, begin = inspect.getsourcelines(function)
    number = next(number for number, line in enumerate(lines, begin) if line.rstrip().endswith(FAULT))
    return str(SourceLine(inspect.getfile(function), number, function.__module__))


def compiled(step: AnyStep, backend: str = "inductor") -> types.FunctionType:
    """`step` compiled without `fullgraph`."""
    made: Any = torch.compile(step, dynamic=False, backend=backend)
    assert isinstance(made, types.FunctionType)
    return made


class CompileCounts(NamedTuple):
    """The compiler's counts for the first call of a step, and the first lines of its reasons for breaks."""

    breaks: int
    graphs: int
    reasons: list[str]


def compile_counting(call: Callable[[], object]) -> CompileCounts:
    """Of the first call of a step."""
    counters.clear()
    before = len(graph_break_reasons)
    call()
    reasons = [str(one.reason).splitlines()[0].rstrip(".") for one in graph_break_reasons[before:]]
    breaks = sum(counters["graph_break"].values())
    return CompileCounts(breaks, counters["stats"]["unique_graphs"], reasons)


NOTHING_COMPILED = "torch.compile compiles nothing of this module: this probe is of compiled code"


def recompiles(step: types.FunctionType, *parts: Callable[..., object]) -> int:
    """Entries after the first, of `step` and of `parts` of it, which have some where the graph breaks there.

    Raises StudyError where the compiler compiles nothing of the step.
    """
    made = [len(entries(step)), *(len(_debug_get_cache_entry_list(part.__code__)) for part in parts)]
    if not made[0]:
        raise StudyError("unsupported_here", NOTHING_COMPILED)
    return sum(max(count - 1, 0) for count in made)


def failed_guard() -> str:
    """Of the newest recompilation."""
    reasons = [str(made.recompile_reason) for made in get_compilation_metrics() if made.recompile_reason]
    return f"The guard that failed: {reasons[-1].splitlines()[0].split('#')[0].strip()}."


def seconds_of(call: Callable[[], object]) -> float:
    began = perf_counter_ns()
    call()
    return (perf_counter_ns() - began) / 1e9


@contextmanager
def as_found(bench: AnyBench, recompile_limit: int) -> Iterator[None]:
    """Run the body, then restore all of the process that a probe may change.

    The compiler's entries are dropped before and after: a broken graph leaves entries on the model's own
    code. The compiler does not warn: a probe provokes its warnings, and reports them itself.
    """
    threads, logged = torch.get_num_threads(), logging.root.manager.disable
    kept = {name: counter.copy() for name, counter in counters.items()}, graph_break_reasons.copy()
    _reset(bench)
    try:
        with (
            warnings.catch_warnings(),
            torch.random.fork_rng(),  # a user's inputs are made of a seed
            torch._dynamo.config.patch(recompile_limit=recompile_limit),
        ):
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            yield
    finally:
        _reset(bench)
        torch.set_num_threads(threads)
        logging.disable(logged)
        counters.clear()
        counters.update(kept[0])
        graph_break_reasons[:] = kept[1]
        gc.collect()  # a step and its compiled code refer to each other
        if bench.device.type == "cuda":
            torch._C._host_emptyCache()  # torch keeps pinned memory whose tensor is gone


def _reset(bench: AnyBench) -> None:
    torch._dynamo.reset()
    bench.forget()
