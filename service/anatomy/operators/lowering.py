"""What a step is on its way down: its graphs, its core ATen form, a dispatch table, the registry's counts."""

from __future__ import annotations

import msgspec

from service.anatomy.operators.decomposition import Decomposition, decompose
from service.anatomy.operators.dispatch_table import DispatchTable, read_dispatch_table
from service.anatomy.operators.graph_texts import GraphText, graph_texts
from service.anatomy.operators.registry import Registry, count_registry
from service.anatomy.progress import Report
from service.measure.cases import Bench, Case


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
