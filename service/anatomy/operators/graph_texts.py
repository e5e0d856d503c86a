"""The graphs of a compiled step as text: Dynamo's, of Python's calls, and AOTAutograd's, of ATen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor.decomposition import select_decomp_table
from torch.fx import GraphModule

from service.anatomy.operators.graph_breaks import trace_with
from service.anatomy.operators.source_lines import SourceLine
from service.measure.cases import Bench, Case

LINES_KEPT = 400
"""Of each graph: one has some lines per operator."""

_FILE = re.compile(r"File: (\S+):(\d+)")
_OPERATIONS = frozenset({"call_function", "call_method", "call_module"})

Stage = Literal["dynamo", "aot"]


class GraphText(msgspec.Struct, frozen=True, kw_only=True):
    """One graph as the Python that torch.fx writes for it: the first LINES_KEPT of `lines`.

    `dynamo`: torch's functions and methods as the model calls them. `aot`: the same in ATen, functional,
    after the decompositions that Inductor asks for; this is what it fuses. `operations` counts its calls.
    """

    stage: Stage
    operations: int
    lines: int
    text: str


def graph_texts(bench: Bench, case: Case) -> list[GraphText]:
    """Trace the step of `case` apart from its compiled entries; generates no code."""
    capture = _Capture()
    trace_with(bench, case, capture)
    return capture.graphs


class _Capture:
    """A backend of `torch.compile` that keeps the text of each graph and runs it as it is."""

    def __init__(self) -> None:
        self.graphs: list[GraphText] = []

    def __call__(self, graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        self._keep("dynamo", graph)
        return aot_autograd(fw_compiler=self._lowered, decompositions=select_decomp_table)(graph, inputs)

    def _lowered(self, graph: GraphModule, inputs: Sequence[Any]) -> Any:  # noqa: ANN401 - torch's own
        self._keep("aot", graph)
        return make_boxed_func(graph.forward)

    def _keep(self, stage: Stage, graph: GraphModule) -> None:
        operations = sum(node.op in _OPERATIONS for node in graph.graph.nodes)
        self.graphs.append(bounded(stage, operations, graph.print_readable(print_output=False)))


def bounded(stage: Stage, operations: int, text: str) -> GraphText:
    """The first lines of `text`, with files of ours as they are named elsewhere."""
    lines = text.strip().splitlines()
    kept = "\n".join(line.rstrip() for line in lines[:LINES_KEPT])
    named = _FILE.sub(lambda found: f"File: {SourceLine.in_file(found[1], int(found[2]))}", kept)
    return GraphText(stage=stage, operations=operations, lines=len(lines), text=named)
