"""Prints one operator's call: its key set, the keys that it visits, and what each part of it takes."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.layers.show import STATES, agreement_cell, interval_cell
from service.anatomy.layers.study import AGREEMENT
from service.anatomy.operator_call.finding import DispatchedCall, OperatorCallFinding, Slice


def show(finding: OperatorCallFinding, console: Console) -> None:
    """Print `finding`."""
    state = f"{STATES[finding.grad]}, autocast {'on' if finding.autocast else 'off'}"
    tensors = f"{finding.size} × {finding.size}, {finding.dtype}"
    console.print(f"[bold]{escape(finding.expression)}[/] on {finding.device}, {tensors}, {state}")
    _keys(finding, console)
    console.print(_calls(finding.calls), _slices(finding), _methods(finding.slices))
    for note in finding.notes:
        console.print(f"note: {note}", markup=False)
    console.print(
        f"[dim]µs, median of {finding.rounds} interleaved rounds \\[95 % interval]. In brackets: not in the "
        "sum, because it is switched off here or runs beside the host.[/]"
    )


def _keys(finding: OperatorCallFinding, console: Console) -> None:
    for tensor in finding.arguments:
        grad = ", requires grad" if tensor.requires_grad else ""
        shape = "×".join(map(str, tensor.shape))
        console.print(f"{tensor.name}: {shape} {tensor.dtype}{grad}: {' '.join(tensor.keys)}", markup=False)
    console.print(f"dispatched on: {' '.join(finding.key_set)}", markup=False)


def _calls(calls: list[DispatchedCall]) -> Table:
    table = Table("call", "keys visited, by torch's table", title="through the dispatcher")
    for call in calls:
        visited = (
            "not known: its arguments are the kernel's own"
            if call.keys is None
            else " → ".join(f"{key.key} ({key.kind})" for key in call.keys)
        )
        table.add_row("  " * call.depth + call.operator, visited)
    return table


def _slices(finding: OperatorCallFinding) -> Table:
    table = Table("slice", "µs", "up to here", "keys")
    for each in finding.slices:
        own = interval_cell(each.microseconds, each.in_sum)
        table.add_row(each.name, own, interval_cell(each.running_microseconds, True), " ".join(each.keys))
    table.add_section()
    table.add_row("sum", interval_cell(finding.sum_microseconds, True))
    table.add_row("whole, measured apart", interval_cell(finding.whole_microseconds, True))
    ratio = agreement_cell(finding.agreement, finding.agrees)
    table.add_row(f"sum / whole, within {AGREEMENT:.0%}", ratio)
    return table


def _methods(slices: list[Slice]) -> Table:
    table = Table("slice", "separated by", box=None, padding=(0, 2), header_style="dim", style="dim")
    for each in slices:
        table.add_row(each.name, f"not here: {each.why_not}" if each.why_not else each.method)
    return table
