"""Prints the layer table: one table per operator, a column per size, and how each layer was isolated."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from service.anatomy.layers.study import AGREEMENT, LayersFinding, OperationLayers
from service.statistics.intervals import Interval

STATES = {"enabled": "grad mode on", "no_grad": "no_grad", "inference_mode": "inference mode"}


def show(finding: LayersFinding, console: Console) -> None:
    """Print `finding`."""
    state = f"{STATES[finding.grad]}, autocast {'on' if finding.autocast else 'off'}"
    machine = f"{finding.device}, {finding.dtype}, {finding.threads} thread(s)"
    console.print(f"[bold]layers of one call, {machine}, {state}[/]")
    by_operation: dict[str, list[OperationLayers]] = {}
    for each in finding.operations:
        by_operation.setdefault(each.operation, []).append(each)
    for sizes in by_operation.values():
        console.print(_table(sizes), _experiments(sizes[0]))
    console.print(
        f"[dim]µs, median of {finding.rounds} interleaved rounds \\[95 % interval]. In brackets: not in the "
        "sum, because it is switched off here or runs beside the host. Calls follow each other: within a "
        "model each costs more.[/]"
    )
    for note in finding.notes:
        console.print(f"note: {note}", markup=False)


def _table(sizes: list[OperationLayers]) -> Table:
    table = Table("layer", *(f"{each.size} × {each.size}" for each in sizes), title=sizes[0].statement)
    for place, layer in enumerate(sizes[0].layers):
        cells = [interval_cell(each.layers[place].microseconds, each.layers[place].in_sum) for each in sizes]
        table.add_row(layer.name, *cells)
    table.add_section()
    table.add_row("sum", *(interval_cell(each.sum_microseconds, True) for each in sizes))
    table.add_row("whole, measured apart", *(interval_cell(each.whole_microseconds, True) for each in sizes))
    table.add_row(
        f"sum / whole, within {AGREEMENT:.0%}",
        *(agreement_cell(each.agreement, each.agrees) for each in sizes),
    )
    return table


def _experiments(one: OperationLayers) -> Table:
    table = Table("layer", "isolated by", box=None, padding=(0, 2), header_style="dim", style="dim")
    for layer in one.layers:
        table.add_row(layer.name, f"not here: {layer.why_not}" if layer.why_not else layer.experiment)
    return table


def interval_cell(interval: Interval | None, in_sum: bool) -> str:
    """Microseconds with their bounds, dimmed where they are not in the sum; a dash for None."""
    if interval is None:
        return "–"
    text = f"{_number(interval.value)} \\[{_number(interval.low)}, {_number(interval.high)}]"
    return text if in_sum else f"[dim]({text})[/]"


def agreement_cell(ratio: Interval, agrees: bool) -> str:
    """Sum over whole with its bounds, marked where it does not agree."""
    text = f"{ratio.value:.2f} \\[{ratio.low:.2f}, {ratio.high:.2f}]"
    return text if agrees else f"[bold red]{text}[/]"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
