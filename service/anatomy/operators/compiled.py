"""The compiler's output for a step: graphs, guards, recompiles, kernels and code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from torch._inductor.output_code import CompiledFxGraph

from service.anatomy.errors import StudyError
from service.anatomy.operators.graph_breaks import Tracing, trace
from service.anatomy.operators.guards import Guard, entries, read_guards
from service.anatomy.operators.sources import FusedKernel, fused_kernels
from service.anatomy.operators.wrapper_times import WrapperTimes, time_wrappers
from service.anatomy.progress import Report
from service.measure.cases import Bench, Case


@dataclass(frozen=True, slots=True)
class GraphCall:
    """A generated graph and its inputs in one step."""

    graph: CompiledFxGraph
    inputs: list[Any]


class CompilerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled step. `recompiles` counts the cache entries after the first."""

    tracing: Tracing
    compiled_graphs: int
    recompiles: int
    guards: list[Guard]
    fused_kernels: list[FusedKernel]
    generated_code: str
    times: WrapperTimes | None


def read_compiled(bench: Bench, case: Case, report: Report) -> CompilerReport:
    """Report on the compiled step of `case`. Raises StudyError where it ran no compiled code."""
    with graph_calls() as calls:
        case.call()
    compiled = entries(case.step)
    if not calls or not compiled:
        raise StudyError("mode_failed", f"{case.mode} ran no compiled code: run the study again", "mode")
    report("timing guards and wrappers")
    times = time_wrappers(case, calls[0].graph, calls[0].inputs) if len(calls) == 1 else None
    code = [call.graph.source_code for call in calls]
    return CompilerReport(
        tracing=trace(bench, case),
        compiled_graphs=len(calls),
        recompiles=len(compiled) - 1,
        guards=[guard for entry in compiled[:1] for guard in read_guards(entry)],
        fused_kernels=[kernel for text in code for kernel in fused_kernels(text)],
        generated_code="\n".join(code),
        times=times,
    )


@contextmanager
def graph_calls() -> Iterator[list[GraphCall]]:
    """A context that collects every generated graph called in this process, with copies of its input lists.

    Unlike the compiler's hooks, it also sees the code of graphs that come from a warm cache.
    """
    calls: list[GraphCall] = []
    original = CompiledFxGraph.__call__

    def note(self: CompiledFxGraph, inputs: Any) -> Any:  # noqa: ANN401
        calls.append(GraphCall(self, list(inputs)))
        return original(self, inputs)

    CompiledFxGraph.__call__ = note  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        CompiledFxGraph.__call__ = original  # type: ignore[method-assign]
