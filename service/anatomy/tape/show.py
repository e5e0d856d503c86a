"""Prints a tape: forward operators, backward nodes with their saved tensors, leaves, each mode's step."""

from __future__ import annotations

from rich.console import Console
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from service.anatomy.tape.graph import BackwardNode, ForwardOperator
from service.anatomy.tape.storages import Held, SavedTensor
from service.anatomy.tape.study import TapeFinding

ROWS_SHOWN = 60


def show(finding: TapeFinding, console: Console) -> None:
    """Print `finding`; of a long tape the first rows, and their number."""
    console.print(f"tape of [bold]{escape(finding.source)}[/] on {finding.device}")
    console.print(_forward(finding), _backward(finding), _leaves(finding))
    console.print(
        f"kept: {_totals(finding.held)}\n"
        f"autograd's hooks on saving saw {decimal(finding.hooked.storage_bytes)} in a second run; "
        f"`.grad` of the parameters will take {decimal(finding.grad_bytes)}"
    )
    for run in finding.untaped:
        tape = "a tape" if run.has_grad_fn else "no tape"
        console.print(f"under {run.grad}: {len(run.forward)} operators, {tape}, kept: {_totals(run.held)}")
    if any(leaf.kind == "input" for leaf in finding.leaves):
        console.print("[dim]an input is a leaf here only: in a step it is an activation, without .grad.[/]")
    console.print(_steps(finding))
    console.print(
        "[dim]tape: what autograd saved during one step, each storage once; own: what only the tape keeps "
        "alive. peak: the most that the step had allocated at once. new memory –: written in place.[/]"
    )


def _forward(finding: TapeFinding) -> Table:
    table = Table("#", "operator", "result", "new memory", "recorded as", title="forward")
    for number, operator in enumerate(finding.forward[:ROWS_SHOWN]):
        node = "–" if operator.node is None else f"{finding.backward[operator.node].name} ({operator.node})"
        table.add_row(str(number), operator.operator, _shape(operator.shape), _new(operator), node)
    return _cut(table, len(finding.forward))


def _backward(finding: TapeFinding) -> Table:
    table = Table("#", "node", "feeds", "keeps", "bytes", title="backward, in the order of running")
    for node in finding.backward[:ROWS_SHOWN]:
        kept = "\n".join(map(_kept, node.saved)) or "nothing"
        table.add_row(str(node.index), node.name, _feeds(node), kept, decimal(node.saved_bytes))
    return _cut(table, len(finding.backward))


def _leaves(finding: TapeFinding) -> Table:
    table = Table("leaf", "kind", "shape", ".grad", "node", title="leaves that get .grad")
    for leaf in finding.leaves[:ROWS_SHOWN]:
        table.add_row(leaf.name, leaf.kind, _shape(leaf.shape), decimal(leaf.grad_bytes), str(leaf.node))
    return _cut(table, len(finding.leaves))


def _steps(finding: TapeFinding) -> Table:
    title = f"one {finding.phase} step of the served model, batch {finding.batch_bucket}"
    table = Table("mode", "runs as", "saved tensors", "tape", "own", "peak", "allocations", title=title)
    for step in finding.steps:
        count = step.step.allocations
        table.add_row(
            step.mode,
            step.effective,
            str(step.held.tensors),
            decimal(step.held.storage_bytes),
            decimal(step.held.own_bytes),
            decimal(step.step.peak_bytes),
            "–" if count is None else str(count),
        )
    return table


def _new(operator: ForwardOperator) -> str:
    if operator.new_bytes:
        return decimal(operator.new_bytes)
    return "view" if operator.is_view else "–"


def _cut(table: Table, count: int) -> Table:
    if count > ROWS_SHOWN:
        table.caption = f"{ROWS_SHOWN} of {count}; --json has all"
    return table


def _totals(held: Held) -> str:
    kinds = ", ".join(f"{kind} {decimal(size)}" for kind, size in held.by_kind.items()) or "nothing"
    return f"{held.tensors} tensors in {held.storages} storages, {decimal(held.storage_bytes)}: {kinds}"


def _kept(tensor: SavedTensor) -> str:
    view = "" if tensor.storage_bytes == tensor.tensor_bytes else f" of {decimal(tensor.storage_bytes)}"
    owner = f"{tensor.kind} {tensor.of}" if tensor.of else tensor.kind
    return f"{tensor.name}: {_shape(tensor.shape)} {tensor.dtype}{view}, {owner}, storage {tensor.storage}"


def _feeds(node: BackwardNode) -> str:
    return ", ".join(map(str, node.feeds)) or "–"


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"
