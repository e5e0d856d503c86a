"""What a step is on its way down: its graphs, its core ATen form, a dispatch table, the registry's counts."""

from __future__ import annotations

import difflib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._inductor.decomposition import select_decomp_table
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils._pytree import tree_map

from service.anatomy.common import Report, StudyError
from service.anatomy.operators.calls import DispatchEntry, SourceLine, dispatch_entries
from service.anatomy.operators.compiled import trace_with
from service.measure.cases import Bench, Case
from service.step.packages import PositionalStep


class Lowering(msgspec.Struct, frozen=True, kw_only=True):
    """The step between Python and kernels. `graphs` is None for a mode that does not compile.

    `decomposition` is None, and `no_decomposition` has the reason, for a model that cannot be exported.
    """

    graphs: list[GraphText] | None
    decomposition: Decomposition | None
    no_decomposition: str | None
    dispatch_table: DispatchTable
    registry: Registry


def read_lowering(bench: Bench, case: Case, compiles: bool, operator: str, report: Report) -> Lowering:
    """Read all of it; takes seconds. Raises StudyError for an `operator` that torch lacks."""
    table = read_dispatch_table(operator)
    report("counting torch's registry")
    registry = count_registry()
    graphs = None
    if compiles:
        report("tracing the graphs")
        graphs = graph_texts(bench, case)
    report("decomposing to core ATen")
    decomposition, missing = _decomposed(bench, case)
    return Lowering(
        graphs=graphs,
        decomposition=decomposition,
        no_decomposition=missing,
        dispatch_table=table,
        registry=registry,
    )


def _decomposed(bench: Bench, case: Case) -> tuple[Decomposition | None, str | None]:
    try:
        return decompose(bench, case), None
    except Exception as error:  # noqa: BLE001 - whatever export cannot take is the reason that is shown
        return None, f"torch.export does not take this model: {type(error).__name__}: {error}"[:2000]


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


class OperatorCount(msgspec.Struct, frozen=True, kw_only=True):
    """How often the overload `name` is in the graph before and after; `core`: it is of core ATen."""

    name: str
    before: int
    after: int
    core: bool


class Decomposition(msgspec.Struct, frozen=True, kw_only=True):
    """The step's graph by `torch.export`: as written, composite operators whole, and in core ATen.

    `after` counts operators once torch's core ATen decompositions have replaced what they can, and writes in
    place are functional. `not_core` of these are not tagged as core: a backend has to know them besides.
    `operators` has every overload of both, those that were most frequent before first.
    """

    before: int
    after: int
    distinct_before: int
    distinct_after: int
    not_core: int
    operators: list[OperatorCount]


def decompose(bench: Bench, case: Case) -> Decomposition:
    """Export the served model's step of the phase and bucket of `case`; nothing of it is run.

    Raises whatever `torch.export` raises for a model that it cannot export.
    """
    arguments = case.buffers.arguments(case.phase)
    # Tensors of inference mode cannot be traced into an exported program.
    with torch.inference_mode(False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own use of its tree of arguments
        # Not the arguments themselves: export takes off the marks of those that it is given.
        program = torch.export.export(PositionalStep(bench.model), tree_map(Tensor.detach, arguments))
        return compare(_counted(program), _counted(program.run_decompositions()))


def compare(before: Counter[str], after: Counter[str]) -> Decomposition:
    """The finding of both graphs' counts by overload."""
    names = sorted(before | after, key=lambda name: (-before[name], -after[name], name))
    core = {name for name in names if is_core(name)}
    return Decomposition(
        before=before.total(),
        after=after.total(),
        distinct_before=len(before),
        distinct_after=len(after),
        not_core=sum(count for name, count in after.items() if name not in core),
        operators=[
            OperatorCount(name=name, before=before[name], after=after[name], core=name in core)
            for name in names
        ],
    )


def _counted(program: ExportedProgram) -> Counter[str]:
    """Operators of the graph by overload; reading one of several results is none."""
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    return Counter(target.name() for target in targets if isinstance(target, OpOverload))


class DispatchTable(msgspec.Struct, frozen=True, kw_only=True):
    """The computed table of `operator`, in the order of the keys' runtime entries."""

    operator: str
    entries: list[DispatchEntry]


def read_dispatch_table(operator: str) -> DispatchTable:
    """The table of `operator`, such as `aten::add.Tensor`. Raises StudyError for a name that torch lacks."""
    names = torch._C._dispatch_get_all_op_names()
    if operator not in names:
        near = difflib.get_close_matches(operator, names, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ": names are as aten::add.Tensor"
        raise StudyError("invalid_request", f"no operator '{operator[:64]}'{hint}", "operator")
    return DispatchTable(operator=operator, entries=list(dispatch_entries(operator).values()))


_ATEN = "aten::"


class Registry(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over the dispatcher of this process: `overloads` of ATen in total, under `operators` names.

    `core_overloads` and `core_operators` are those that carry `torch.Tag.core`: the set that a backend has to
    know after decomposition.
    """

    overloads: int
    operators: int
    core_overloads: int
    core_operators: int


@cache
def count_registry() -> Registry:
    """Count once per process: reading the tags of every overload takes some tenths of a second."""
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(_ATEN)]
    core = [name for name in names if is_core(name)]
    return Registry(
        overloads=len(names),
        operators=len({_operator(name) for name in names}),
        core_overloads=len(core),
        core_operators=len({_operator(name) for name in core}),
    )


def is_core(name: str) -> bool:
    """Whether the overload `name`, such as `aten::add.Tensor`, is of core ATen. False for an unknown one."""
    operator, _, overload = name.partition(".")
    found = torch._C._get_operation_overload(operator, overload)
    return found is not None and torch.Tag.core in found[2]


def _operator(name: str) -> str:
    return name.partition(".")[0]
