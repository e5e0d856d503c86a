"""Prints a step's way down: graphs, core ATen, a dispatch table and the registry."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table

from service.anatomy.operators.decomposition import Decomposition
from service.anatomy.operators.dispatch_table import DispatchEntry, DispatchTable
from service.anatomy.operators.graph_texts import GraphText
from service.anatomy.operators.lowering import Lowering

GRAPH_LINES_SHOWN = 24
OPERATORS_SHOWN = 20

_STAGES = {"dynamo": "Dynamo's graph, of torch's functions", "aot": "AOTAutograd's graph, of ATen"}


def show_lowering(found: Lowering, console: Console) -> None:
    """Print `found`; long parts in their beginning."""
    for graph in found.graphs or []:
        _graph(graph, console)
    if found.decomposition is None:
        console.print(f"no core ATen form: {found.no_decomposition}", markup=False)
    else:
        _decomposition(found.decomposition, console)
    _dispatch_table(found.dispatch_table, console)
    counts = found.registry
    console.print(
        f"torch's registry: {counts.overloads} overloads of {counts.operators} ATen operators; core ATen are "
        f"{counts.core_overloads} overloads of {counts.core_operators}"
    )


def _graph(graph: GraphText, console: Console) -> None:
    lines = graph.text.splitlines()
    console.print(f"{_STAGES[graph.stage]}: {graph.operations} calls, {graph.lines} lines")
    for line in lines[:GRAPH_LINES_SHOWN]:
        console.print(f"  {line}", markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
    if graph.lines > GRAPH_LINES_SHOWN:
        console.print(f"  … {graph.lines - GRAPH_LINES_SHOWN} more lines; --json has the first {len(lines)}")


def _decomposition(found: Decomposition, console: Console) -> None:
    table = Table(
        title=f"core ATen: {found.before} operators ({found.distinct_before} different) become {found.after} "
        f"({found.distinct_after} different), of which {found.not_core} are not core",
        title_justify="left",
    )
    for heading in ("operator", "before", "after", "core"):
        table.add_column(heading, justify="right" if heading in {"before", "after"} else "left")
    for row in found.operators[:OPERATORS_SHOWN]:
        name = row.name.removeprefix("aten::")
        table.add_row(name, str(row.before), str(row.after), "yes" if row.core else "no")
    console.print(table)
    if len(found.operators) > OPERATORS_SHOWN:
        console.print(f"and {len(found.operators) - OPERATORS_SHOWN} more names; --json has all")


def _dispatch_table(found: DispatchTable, console: Console) -> None:
    title = f"dispatch table of {found.operator}: {len(found.entries)} keys, neighbours alike in one row"
    table = Table(title=title, title_justify="left")
    for heading in ("keys", "how", "registered at"):
        table.add_column(heading)
    for (kind, place, through), entries in groupby(found.entries, _kernel):
        keys = [entry.key for entry in entries]
        named = keys[0] if len(keys) == 1 else f"{keys[0]} … {keys[-1]} ({len(keys)})"
        table.add_row(named, f"{kind}, falls through" if through else kind, place)
    console.print(table)


def _kernel(entry: DispatchEntry) -> tuple[str, str, bool]:
    return entry.kind, entry.place, entry.falls_through
