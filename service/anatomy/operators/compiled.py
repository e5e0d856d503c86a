"""The compiler's output for a step: graphs, breaks, guards, recompiles, kernels, code, and wrapper times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Literal

import msgspec
import torch
from torch._dynamo.backends.debugging import ExplainWithBackend
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._inductor.output_code import CompiledFxGraph

from service.anatomy.common import MedianSeconds, Report, StudyError
from service.anatomy.operators.calls import SourceLine
from service.measure.cases import AnyBench, AnyCase
from service.measure.rounds import in_rounds
from service.modes import MODES, Effect
from service.statistics.intervals import median_interval
from service.step.callables import AnyStep


def read_compiled(bench: AnyBench, case: AnyCase, report: Report) -> dict[str, Any]:
    """The fields of a finding that are of the compiled step of `case`; recompiles: entries after the first.

    Raises StudyError where it ran no compiled code.
    """
    with graph_calls() as calls:
        case.call()
    compiled = entries(case.step)
    if not calls or not compiled:
        raise StudyError("mode_failed", f"{case.mode} ran no compiled code: run the study again", "mode")
    report("timing guards and wrappers")
    times = time_wrappers(case, *calls[0]) if len(calls) == 1 else None
    code = [graph.source_code for graph, _ in calls]
    report("tracing for graph breaks")
    return {
        **trace(bench, case),
        "recompiles": len(compiled) - 1,
        "guards": read_guards(compiled[0]),
        "wrapper": times,
        "fused_kernels": [kernel for text in code for kernel in fused_kernels(text)],
        "generated_code": "\n".join(code),
    }


@contextmanager
def graph_calls() -> Iterator[list[tuple[CompiledFxGraph, list[Any]]]]:
    """A context that collects every generated graph called in this process, and its inputs.

    Unlike the compiler's hooks, it also sees the code of graphs that come from a warm cache.
    """
    calls: list[tuple[CompiledFxGraph, list[Any]]] = []
    original = CompiledFxGraph.__call__

    def note(self: CompiledFxGraph, inputs: Any) -> Any:  # noqa: ANN401
        calls.append((self, list(inputs)))
        return original(self, inputs)

    CompiledFxGraph.__call__ = note  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    line: str | None


def trace(bench: AnyBench, case: AnyCase) -> dict[str, Any]:
    """Trace the step of `case` without `fullgraph`, in the same contexts, with a separate code object.

    `torch._dynamo.explain` would count the same, but resets every compiled entry of the process.
    """
    backend = ExplainWithBackend("eager")
    traced = Effect(case.mode, {"backend": backend, "dynamic": False})
    mode = replace(MODES[case.mode], cpu=traced, cuda=traced)
    bench.build(mode)(*case.arguments)
    explained = backend.output()
    return {
        "graphs": explained.graph_count,
        "graph_break_count": explained.graph_break_count,
        "graph_breaks": [_break(reason) for reason in explained.break_reasons],
    }


def _break(reason: Any) -> GraphBreak:  # noqa: ANN401 - torch's GraphCompileReason
    lines = [SourceLine.in_file(frame.filename, frame.lineno) for frame in reversed(list(reason.user_stack))]
    callers = [line for line in lines if not line.is_in(torch.__name__)]
    return GraphBreak(reason=reason.reason.strip(), line=next((str(line) for line in callers or lines), None))


_LEAF = re.compile(r"\+- ([A-Z][A-Z_]*): (.*)$")
_LINE = re.compile(r"([\w./-]+\.py:\d+)")


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `kind` is torch's name for it; `line` the code that caused it."""

    kind: str
    expression: str
    line: str | None


def compiled_function(step: AnyStep) -> Any:  # noqa: ANN401 - a function
    """The function inside `step` that `torch.compile` was called with; None where there is none."""
    pending: list[Any] = [step]
    while pending:
        current = pending.pop()
        if hasattr(current, "_torchdynamo_orig_callable"):
            return current._torchdynamo_orig_callable
        for cell in getattr(current, "__closure__", None) or ():
            if callable(cell.cell_contents):
                pending.append(cell.cell_contents)
    return None


def entries(step: AnyStep) -> list[Any]:
    """The compiled cache entries of `step`; every one after the first is a recompile."""
    function = compiled_function(step)
    return [] if function is None else list(_debug_get_cache_entry_list(function.__code__))


def read_guards(entry: Any) -> list[Guard]:  # noqa: ANN401 - one of `entries`
    """Every leaf of an entry's guard tree, in the order in which they are checked."""
    found = []
    for leaf in filter(None, map(_LEAF.search, str(entry.guard_manager).splitlines())):
        expression, _, comment = leaf[2].partition("  # ")
        lines = ["/".join(line.split("/")[-2:]) for line in _LINE.findall(comment)]
        found.append(Guard(kind=leaf[1], expression=expression.strip(), line=lines[-1] if lines else None))
    return found


_FUSED = re.compile(r"\b((?:cpp|triton_[a-z]+)_fused_\w+?)(?:\.run)?\(")
_LIBRARY = re.compile(
    r"\b(?:extern_kernels\.(\w+)|torch\.ops\.(\w+\.\w+)\.\w+|aoti_torch_(?:cpu|cuda)_(\w+))\("
)
_ORIGINAL = re.compile(r"Original ATen: \[([^\]]*)\]")
KernelKind = Literal["generated", "library"]


class FusedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, `generated` by Inductor or a `library`'s, and how often the generated code calls it per step.

    `operators` are the ATen operators that it computes, where the code says so beside its name.
    """

    name: str
    kind: KernelKind
    operators: tuple[str, ...]
    calls: int


def fused_kernels(code: str) -> list[FusedKernel]:
    """The kernels of one graph's generated Python or C++, in the order of their first call."""
    calls: Counter[tuple[str, KernelKind, tuple[str, ...]]] = Counter()
    written: dict[str, tuple[str, ...]] = {}
    comment: tuple[str, ...] = ()
    for line in code.splitlines():
        if found := _ORIGINAL.search(line):
            names = (name.strip() for name in found[1].split(","))
            comment = tuple(name.replace(".", "::", 1) for name in names if name)
            continue
        if "async_compile." in line:
            if comment and "triton" in line:
                written[line.split("=")[0].strip()] = comment
            comment = ()
            continue
        if '"C"' in line or "assert_size_stride" in line:
            continue
        if fused := _FUSED.search(line):
            name = fused[1]
            calls[name, "generated", written.get(name, ())] += 1
        elif comment and (library := _LIBRARY.search(line)):
            calls[_library_name(library), "library", comment] += 1
            comment = ()
    return [
        FusedKernel(name=name, kind=kind, operators=operators, calls=count)
        for (name, kind, operators), count in calls.items()
    ]


def _library_name(found: re.Match[str]) -> str:
    name = found[1] or found[2] or found[3]
    return "aten::" + name.removeprefix("aten.").removesuffix("_out")


MOST_ROUNDS = 24
LEAST_ROUNDS = 6
WRAPPER_SECONDS = 0.8
"""About so long take all rounds, where so few are enough."""

STEPS = 3
LONG_SECONDS = 0.01
"""A call this long is made once per round: what ran before it hardly shows, and three take too long."""


class WrapperTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one call: `whole` = `guards` + `wrappers` + `generated`, each by difference within a round.

    Each is a median over rounds of the shortest of STEPS calls (of one call of LONG_SECONDS and more), so
    `whole` is a little less than the step's median. `guards`: with and without `skip_guard_eval_unsafe`.
    `generated`: the generated code called directly, kernels included on a CPU. `wrappers`: the rest, that is
    entering the mode, the compiled Python frame, and AOTAutograd's and Inductor's wrappers.
    """

    whole: MedianSeconds
    guards: MedianSeconds
    wrappers: MedianSeconds
    generated: MedianSeconds


def time_wrappers(case: AnyCase, graph: Any, inputs: list[Any]) -> WrapperTimes:  # noqa: ANN401
    """Time the warmed `case`, whose only generated graph is `graph`, called with `inputs`."""
    call = _on_an_idle_device(case.call_seconds, case)
    direct = _on_an_idle_device(lambda: _direct_seconds(graph, inputs), case)
    once = call()
    steps = 1 if once >= LONG_SECONDS else STEPS

    def unguarded() -> float:
        with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
            return _shortest(call, steps)

    def generated() -> float:
        with torch.inference_mode():
            return _shortest(direct, steps)

    variants = {"whole": lambda: _shortest(call, steps), "unguarded": unguarded, "generated": generated}
    rounds = int(WRAPPER_SECONDS / (len(variants) * (steps + 1) * once))
    seconds = in_rounds(variants, min(max(rounds, LEAST_ROUNDS), MOST_ROUNDS), "wrappers")

    def difference(larger: str, smaller: str) -> MedianSeconds:
        pairs = zip(seconds[larger], seconds[smaller], strict=True)
        return MedianSeconds.of(median_interval([a - b for a, b in pairs]))

    return WrapperTimes(
        whole=MedianSeconds.of(median_interval(seconds["whole"])),
        guards=difference("whole", "unguarded"),
        wrappers=difference("unguarded", "generated"),
        generated=MedianSeconds.of(median_interval(seconds["generated"])),
    )


def _on_an_idle_device(call: Callable[[], float], case: AnyCase) -> Callable[[], float]:
    """`call` after a wait for the device: a full launch queue would block it, and read as dispatch."""

    def waited() -> float:
        torch.cuda.synchronize()
        return call()

    return waited if case.device.type == "cuda" else call


def _shortest(call: Callable[[], float], steps: int) -> float:
    """Minimum of `steps` calls, after an untimed one where they are several."""
    if steps > 1:
        call()
    return min(call() for _ in range(steps))


def _direct_seconds(graph: Any, inputs: list[Any]) -> float:  # noqa: ANN401
    torch.compiler.cudagraph_mark_step_begin()
    given = list(inputs)  # generated code empties its argument list
    began = perf_counter_ns()
    graph.current_callable(given)
    return (perf_counter_ns() - began) / 1e9
