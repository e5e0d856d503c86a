"""Prints the compiler's output for a step as tables."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.operators.finding import OperatorsFinding
from service.anatomy.operators.wrapper_times import WrapperTimes

GUARDS_SHOWN = 8


def show_compiled(finding: OperatorsFinding, console: Console) -> None:
    """Print graphs, breaks, recompiles, guards, kernels, the size of the code and the wrapper times."""
    lines = len((finding.generated_code or "").splitlines())
    console.print(
        f"{finding.graphs} graph, {finding.graph_break_count} graph breaks, {finding.recompiles} recompiles, "
        f"{len(finding.guards or [])} guards, {lines} lines of generated code"
    )
    for found in finding.graph_breaks or []:
        console.print(f"graph break at {found.line or 'an unknown line'}: {found.reason}")
    _kernels(finding, console)
    _guards(finding, console)
    if finding.wrapper is not None:
        _wrapper(finding.wrapper, console)


def _kernels(finding: OperatorsFinding, console: Console) -> None:
    table = Table(
        title="kernels of the generated code, and the operators they stand for", title_justify="left"
    )
    for heading in ("calls", "by", "kernel", "operators"):
        table.add_column(heading, justify="right" if heading == "calls" else "left")
    for kernel in finding.fused_kernels or []:
        short = kernel.name if len(kernel.name) < 40 else f"{kernel.name[:30]}…{kernel.name[-6:]}"
        names = " ".join(name.removeprefix("aten::") for name in kernel.operators) or "?"
        table.add_row(str(kernel.calls), kernel.kind, short, names)
    console.print(table)


def _guards(finding: OperatorsFinding, console: Console) -> None:
    kinds = Counter(guard.kind for guard in finding.guards or [])
    table = Table(title="guards by kind, checked before every call", title_justify="left")
    for heading in ("guards", "kind", "for example"):
        table.add_column(heading, justify="right" if heading == "guards" else "left")
    for kind, count in kinds.most_common(GUARDS_SHOWN):
        example = next(guard.expression for guard in finding.guards or [] if guard.kind == kind)
        table.add_row(str(count), kind, escape(example[:90]))
    console.print(table)


def _wrapper(times: WrapperTimes, console: Console) -> None:
    table = Table(title="one call, taken apart", title_justify="left")
    for heading in ("part", "µs", "95 %", "how"):
        table.add_column(heading)
    for name, found, how in (
        ("guards", times.guards, "with and without evaluating them"),
        ("wrappers", times.wrappers, "what is left around the generated code"),
        ("generated code", times.generated, "called directly; on a CPU with its kernels"),
        ("whole", times.whole, "the step"),
    ):
        low, high = (f"{(side or 0.0) * 1e6:.1f}" for side in (found.low, found.high))
        table.add_row(name, f"{found.median_seconds * 1e6:.1f}", f"{low} to {high}", how)
    console.print(table)
