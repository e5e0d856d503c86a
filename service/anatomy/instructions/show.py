"""Prints instructions: the modes side by side, part by part, and the first mode's functions."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.instructions.study import InstructionsFinding, InstructionsOfStep
from service.protocol.splits import Side

FUNCTIONS_SHOWN = 15


def show(finding: InstructionsFinding, console: Console) -> None:
    """Print `finding`."""
    console.print(_modes(finding))
    console.print(
        "[dim]Counted one by one: no load and no clock changes them, another instruction set or torch does. "
        "They are not time: one that waits for memory takes as long as hundreds.[/]"
    )
    console.print(_parts(finding), _functions(finding.steps[0]))


def _modes(finding: InstructionsFinding) -> Table:
    whole = finding.layers == finding.served_layers
    model = "the served model" if whole else f"{finding.layers} of {finding.served_layers} layers, few words"
    title = f"instructions of one {finding.phase} step, batch {finding.batch_bucket}, {model}"
    first = finding.steps[0]
    table = Table("mode", "runs as", title=title)
    for side in ("host", "kernel"):
        table.add_column(side, justify="right")
        table.add_column(f"÷ {first.mode}", justify="right")
    table.add_column("unclassified", justify="right")
    for step in finding.steps:
        table.add_row(
            step.mode,
            step.effective,
            f"{step.host:,}",
            _ratio(step.host, first.host),
            f"{step.kernel:,}",
            _ratio(step.kernel, first.kernel),
            f"{step.unclassified:,}",
        )
    return table


def _parts(finding: InstructionsFinding) -> Table:
    table = Table("side", "whose", title="by part, thousands")
    found: dict[tuple[Side, str], dict[str, int]] = {}
    for step in finding.steps:
        table.add_column(step.mode, justify="right")
        for part in step.parts:
            found.setdefault((part.side, part.part), {})[step.mode] = part.instructions
    for (side, name), by_mode in sorted(found.items(), key=lambda item: (item[0][0], -max(item[1].values()))):
        counts = (by_mode.get(step.mode) for step in finding.steps)
        table.add_row(side, name, *("–" if count is None else f"{count / 1e3:,.1f}" for count in counts))
    return table


def _functions(step: InstructionsOfStep) -> Table:
    table = Table("instructions", "side", "function", "of", title=f"{step.mode}: the functions with the most")
    for function in step.functions[:FUNCTIONS_SHOWN]:
        table.add_row(f"{function.instructions:,}", function.side, escape(function.symbol), function.binary)
    return table


def _ratio(count: int, first: int) -> str:
    return f"{count / first:.3f}" if first else "–"
