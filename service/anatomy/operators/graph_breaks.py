"""Graph breaks of a step, traced separately so that its compiled entries stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import torch
from torch._dynamo.backends.debugging import ExplainWithBackend

from service.anatomy.operators.source_lines import SourceLine
from service.measure.cases import Bench, Case
from service.protocol.modes import MODES, Effect
from service.step.callables import build_step

_TRACED: WeakKeyDictionary[Bench, dict[tuple[str, int, str], Tracing]] = WeakKeyDictionary()


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    """The compiler's reason for a break, and the innermost line of its stack that is not torch's own."""

    reason: str
    line: str | None


class Tracing(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a trace without `fullgraph`, as by `torch._dynamo.explain`.

    `graph_breaks` has one entry for each break for which the compiler gave a reason.
    """

    graphs: int
    graph_break_count: int
    graph_breaks: list[GraphBreak]
    traced_operators: int


def trace(bench: Bench, case: Case) -> Tracing:
    """Trace the step of `case` once per bench, in the same contexts, with a separate code object.

    `torch._dynamo.explain` would count the same, but resets every compiled entry of the process.
    """
    key = case.mode, case.buffers.bucket, case.phase
    known = _TRACED.setdefault(bench, {})
    if key not in known:
        backend = ExplainWithBackend("eager")
        trace_with(bench, case, backend)
        known[key] = _read(backend.output())
    return known[key]


def trace_with(bench: Bench, case: Case, backend: Callable[..., Any]) -> None:
    """Give the graphs of the step of `case` to `backend`, in the step's contexts, and run them once."""
    broken = Effect(case.mode, {"backend": backend, "dynamic": False})
    mode = replace(MODES[case.mode], cpu=broken, cuda=broken)
    build_step(mode, bench.model, precision=bench.precision)(*case.buffers.arguments(case.phase))


def _read(explained: Any) -> Tracing:  # noqa: ANN401 - torch's ExplainOutput
    return Tracing(
        graphs=explained.graph_count,
        graph_break_count=explained.graph_break_count,
        graph_breaks=[_break(reason) for reason in explained.break_reasons],
        traced_operators=explained.op_count,
    )


def _break(reason: Any) -> GraphBreak:  # noqa: ANN401 - torch's GraphCompileReason
    lines = [SourceLine.in_file(frame.filename, frame.lineno) for frame in reversed(list(reason.user_stack))]
    callers = [line for line in lines if not line.is_in(torch.__name__)]
    return GraphBreak(reason=reason.reason.strip(), line=next((str(line) for line in callers or lines), None))
