"""A step without and with a fault: the model it is put in, how both are timed, the line to blame."""

from __future__ import annotations

import copy
import gc
import inspect
import logging
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from time import perf_counter_ns
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.utils import counters, get_compilation_metrics, graph_break_reasons

from models.served import Cache, Served
from models.transformer import Transformer
from service.anatomy.common import StudyError, autocast_of, resolve_bucket
from service.anatomy.operators.calls import Operand, SourceLine, record
from service.anatomy.operators.compiled import entries
from service.measure.cases import Bench, Case
from service.records import Phase
from service.step.buffers import DECODE_POSITION, Buffers, allocate
from service.step.callables import forward_of

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
    """Both steps, warmed; `fault` has the line to blame. `most_repeats`: fewer, where each one compiles."""

    without: TimedStep
    with_fault: TimedStep
    counter: Counter
    fault: Callable[..., object]
    notes: list[str] = field(default_factory=list)
    most_repeats: int | None = None


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


Result = TypeVar("Result")

LAYERS = 2
"""Few, so that a compilation takes seconds; two, so that one layer has no fault."""


@dataclass(frozen=True, slots=True)
class ProbedModel:
    """A copy of the served model that shares its weights; faults go into copies of `model`, not into it.

    Our own models are shortened to `LAYERS` layers; others keep theirs.
    """

    bench: Bench
    model: Served
    buffers: Buffers

    def copy(self) -> Served:
        return _with_shared_weights(self.model)

    def layers(self, model: Served) -> nn.ModuleList:
        """The decoder layers of `model`. Raises StudyError where there is no list of layers."""
        for module in model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == model.config.layers:
                return module
        raise StudyError(
            "unsupported_here", "this model has no ModuleList of its layers: use one of ours, such as tiny"
        )

    def arguments(self, phase: Phase) -> tuple[Tensor, Tensor, Tensor, Cache]:
        """The arguments of a step of `phase`; sets the buffers for it."""
        decode = min(DECODE_POSITION, self.model.config.context - 1)
        self.buffers.positions.fill_(decode if phase == "decode" else 0)
        return self.buffers.arguments(phase)

    def served(self, run: Callable[..., Result], phase: Phase = "decode") -> Callable[[], Result]:
        """A call of `run` with the arguments of `phase`, in inference mode and the served precision."""
        arguments = self.arguments(phase)
        autocast = autocast_of(self.bench.device, self.bench.precision)

        def call() -> Result:
            with autocast:
                return run(*arguments)

        return in_inference(call)


def in_inference(call: Callable[[], Result]) -> Callable[[], Result]:
    inference = torch.inference_mode()

    def run() -> Result:
        with inference:
            return call()

    return run


def make_probed_model(bench: Bench, batch_size: int) -> ProbedModel:
    """A model to probe at the bucket of `batch_size`. Raises StudyError where no bucket is that large."""
    bucket = resolve_bucket(bench, batch_size)
    model = _with_shared_weights(bench.model)
    if isinstance(model, Transformer):
        del model.blocks[LAYERS:]
        model.config = replace(model.config, layers=len(model.blocks))
    buffers = allocate(model, [bucket], bench.settings.prefill_chunk, bench.precision.cache, symbolic=False)
    return ProbedModel(bench, model, buffers[bucket])


def _with_shared_weights(model: Served) -> Served:
    """A deep copy that shares tensors: what is in the memo is not copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())})


def copied_tensors(probed: ProbedModel, run: Callable[[], object]) -> list[Operand]:
    case = Case("inference_mode", "decode", lambda *_: run(), probed.buffers)
    return [target for call in record(case, 1, operands=True)[0].calls for target in call.copied]


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


def compiled(model: Callable[..., object], backend: str = "inductor") -> types.FunctionType:
    """`model` compiled without `fullgraph`, with a separate code object and so separate cache entries."""
    step: Any = torch.compile(forward_of(model, "probed"), dynamic=False, backend=backend)
    assert isinstance(step, types.FunctionType)
    return step


class CompileCounts(NamedTuple):
    """The compiler's counts for the first call of a step, and the first line of its reason for a break."""

    breaks: int
    graphs: int
    reason: str


def compile_counting(call: Callable[[], object]) -> CompileCounts:
    counters.clear()
    before = len(graph_break_reasons)
    call()
    reasons = [str(one.reason).splitlines()[0].rstrip(".") for one in graph_break_reasons[before:]]
    breaks = sum(counters["graph_break"].values())
    return CompileCounts(breaks, counters["stats"]["unique_graphs"], reasons[0] if reasons else "nothing")


def recompiles(step: types.FunctionType) -> int:
    return len(entries(step)) - 1


def failed_guard() -> str:
    """Of the newest recompilation."""
    reason = str(get_compilation_metrics()[-1].recompile_reason)
    return f"The guard that failed: {reason.splitlines()[0].split('#')[0].strip()}."


def seconds_of(call: Callable[[], object]) -> float:
    began = perf_counter_ns()
    call()
    return (perf_counter_ns() - began) / 1e9


@contextmanager
def as_found(bench: Bench, resets: bool, recompile_limit: int) -> Iterator[None]:
    """Run the body, then restore all of the process that a probe may change.

    With `resets` the compiler's entries are dropped before and after: a broken graph leaves entries on the
    model's own code. The compiler does not warn: a probe provokes its warnings, and reports them itself.
    """
    threads, logged = torch.get_num_threads(), logging.root.manager.disable
    kept = {name: counter.copy() for name, counter in counters.items()}, graph_break_reasons.copy()
    _reset(bench, resets)
    try:
        with warnings.catch_warnings(), torch._dynamo.config.patch(recompile_limit=recompile_limit):
            warnings.simplefilter("ignore")
            logging.disable(logging.WARNING)
            yield
    finally:
        _reset(bench, resets)
        torch.set_num_threads(threads)
        logging.disable(logged)
        counters.clear()
        counters.update(kept[0])
        graph_break_reasons[:] = kept[1]
        gc.collect()  # a step and its compiled code refer to each other
        if bench.device.type == "cuda":
            torch._C._host_emptyCache()  # torch keeps pinned memory whose tensor is gone


def _reset(bench: Bench, resets: bool) -> None:
    if resets:
        torch._dynamo.reset()
        bench.forget()
