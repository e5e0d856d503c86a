"""Prints memory: what is always held, what a step of each mode allocates, and allocator statistics."""

from __future__ import annotations

from msgspec import UnsetType
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from service.anatomy.memory.statistics import Statistic
from service.anatomy.memory.study import MemoryFinding, MemoryOfStep


def show(finding: MemoryFinding, console: Console) -> None:
    """Print `finding`."""
    console.print(_parts(finding), _steps(finding))
    console.print(
        "[dim]tape: what autograd saved, own: what only the tape keeps alive; peak: the most that the step "
        "had allocated by torch at once; grown: the process's peak resident size above that before it.[/]"
    )
    if not isinstance(finding.allocator, UnsetType):
        console.print(_allocator(finding.allocator))
        if not finding.files:
            console.print("[dim]--out FOLDER writes a snapshot for pytorch.org/memory_viz.[/]")
    if not isinstance(finding.process, UnsetType):
        process = finding.process
        console.print(f"resident {decimal(process.resident_bytes)}, at most {decimal(process.peak_bytes)}")
    if finding.no_resident:
        console.print(f"growth not measurable: {finding.no_resident}", markup=False)
    for file in finding.files:
        written = f"written to that folder: {file} (open it at pytorch.org/memory_viz)"
        console.print(written, markup=False, soft_wrap=True)


def _parts(finding: MemoryFinding) -> Table:
    table = Table("held", "bytes", "what", title=f"all the time, on {finding.device}")
    for part in finding.parts:
        table.add_row(part.name, decimal(part.bytes), part.what)
    return table


def _steps(finding: MemoryFinding) -> Table:
    title = f"during one {finding.phase} step, batch {finding.batch_bucket}"
    table = Table("mode", "runs as", "tape", "own", "peak", "grown", title=title)
    for step in finding.steps:
        table.add_row(
            step.mode,
            step.effective,
            decimal(step.tape.storage_bytes),
            decimal(step.tape.own_bytes),
            decimal(step.step.peak_bytes),
            _grown(step),
        )
    return table


def _grown(step: MemoryOfStep) -> str:
    resident = step.resident
    if isinstance(resident, UnsetType) or resident is None:
        return "–"
    value, low, high = (decimal(int(size)) for size in (resident.value, resident.low, resident.high))
    return f"{value} [{low}, {high}]"


def _allocator(statistics: list[Statistic]) -> Table:
    table = Table("statistic", "now", "peak", "definition", "source", title="CUDA's caching allocator")
    for statistic in statistics:
        peak = "–" if statistic.peak is None else _value(statistic, statistic.peak)
        table.add_row(
            statistic.name, _value(statistic, statistic.value), peak, statistic.definition, statistic.source
        )
    return table


def _value(statistic: Statistic, value: float) -> str:
    if statistic.unit == "bytes":
        return decimal(int(value))
    return f"{value:.1%}" if statistic.unit == "share" else f"{value:.0f}"
