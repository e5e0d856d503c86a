"""Prints a probe's finding."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.probes.study import ProbeFinding

SHORT_SECONDS = 1e-4
"""Below it times are shown in microseconds."""


def show(finding: ProbeFinding, console: Console) -> None:
    """Print both times, their ratio, the counter, the line to blame and the cure."""
    table = Table()
    unit, scale = ("µs", 1e6) if finding.without.median_seconds < SHORT_SECONDS else ("ms", 1e3)
    for heading in ("", unit, "95 %", finding.counter.name.replace("_", " ")):
        table.add_column(heading, justify="left" if not heading else "right")
    counter = finding.counter
    table.add_row("without", *_times(finding.without, scale), f"{counter.before:,.10g}")
    table.add_row("with", *_times(finding.with_fault, scale), f"{counter.after:,.10g}")
    console.print(f"{finding.name}: {finding.teaches}", markup=False, soft_wrap=True)
    console.print(f"{finding.subject}, {finding.device}", markup=False)
    console.print(table)
    ratio = finding.ratio
    console.print(
        f"{finding.verdict}: {ratio.value:.2f} times as long [{ratio.low:.2f} to {ratio.high:.2f}]",
        markup=False,
    )
    for name, text in (("blame", finding.blame), ("cure", finding.cure)):
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    for note in finding.notes:
        console.print(f"- {note}", markup=False, soft_wrap=True)


def _times(found: MedianSeconds, scale: float) -> tuple[str, str]:
    low, high = ("?" if side is None else f"{side * scale:.3f}" for side in (found.low, found.high))
    return f"{found.median_seconds * scale:.3f}", f"{low} to {high}"
