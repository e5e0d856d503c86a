"""Prints the operators of a step as tables."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.median_seconds import MedianSeconds
from service.anatomy.operators.finding import DispatchShare, OperatorsFinding
from service.anatomy.operators.show_compiled import show_compiled
from service.anatomy.operators.show_kernels import show_kernels
from service.anatomy.operators.show_lowering import show_lowering
from service.protocol.splits import SIDES

MICRO = 1e6


def show(finding: OperatorsFinding, console: Console) -> None:
    """Print the step of `finding`, its operators, copies, sync points, compiled code and kernels."""
    _head(finding, console)
    _operators(finding, console)
    _copies(finding, console)
    _syncs(finding, console)
    if finding.graphs is not None:
        show_compiled(finding, console)
    _native(finding, console)
    if finding.kernel_table is not None:
        show_kernels(finding.kernel_table, console)
    if finding.lowering is not None:
        show_lowering(finding.lowering, console)
    for note in finding.notes:
        console.print(f"note: {note}")


def micros(found: MedianSeconds) -> str:
    """A duration with its interval, in microseconds."""
    if found.low is None or found.high is None:
        return f"{found.median_seconds * MICRO:.1f} µs"
    interval = f"{found.low * MICRO:.1f} to {found.high * MICRO:.1f}"
    return f"{found.median_seconds * MICRO:.1f} µs ({interval}, n={found.samples})"


def _head(finding: OperatorsFinding, console: Console) -> None:
    name = finding.mode if finding.mode == finding.effective else f"{finding.mode} (runs {finding.effective})"
    size = f"batch {finding.batch_size} in bucket {finding.batch_bucket}"
    console.print(f"[bold]{name}, {finding.phase}, {size}, {finding.device}[/bold]")
    if finding.reason:
        console.print(f"  {finding.reason}")
    console.print(f"  {_step_label(finding):<20}{micros(finding.step_seconds)}")
    plain = "Python, binding and composite operators"
    rest = plain if finding.graphs is None else "generated code, guards and wrappers"
    console.print(
        f"  in listed operators {finding.operators_seconds * MICRO:.1f} µs, {finding.operators_share:.0%}; "
        f"the rest is {rest}, and {finding.tail_seconds * MICRO:.1f} µs after the last one"
    )
    if finding.dispatch is not None:
        console.print(f"  dispatch            {_dispatch(finding.dispatch)}")
    console.print(
        f"  profiler            {finding.profiled_seconds.median_seconds * MICRO:.1f} µs per step under it, "
        f"{finding.event_seconds * MICRO:.2f} µs per event taken off; all parts {finding.accounted_share:.0%}"
    )
    console.print(f"  launches            {_launches(finding)}")


def _launches(finding: OperatorsFinding) -> str:
    if finding.no_device is None:
        return f"{finding.launches}, kernels {finding.kernels}"
    if finding.device == "cpu":
        return f"none: {finding.no_device}"
    seen = "unknown" if finding.launches is None else finding.launches
    return f"{seen}, kernels unknown: {finding.no_device}"


def _step_label(finding: OperatorsFinding) -> str:
    return "one step" if finding.device == "cpu" else "call returns after"


def _dispatch(found: DispatchShare) -> str:
    """Both parts, and where they are from."""
    seconds, kernel = (f"{value * MICRO:.1f} µs" for value in (found.seconds, found.kernel_seconds))
    if found.low is not None and found.high is not None:
        seconds += f" ({found.low * MICRO:.1f} to {found.high * MICRO:.1f})"
    if found.source == "sampled":
        return f"{seconds}, {found.share:.0%} of the step (sampled); kernel {kernel}, the rest"
    return f"{seconds}, {found.share:.0%} of dispatch + kernel (measured; they overlap); kernel {kernel}"


def _operators(finding: OperatorsFinding, console: Console) -> None:
    table = Table(title=f"{len(finding.operators)} operators, below autograd", title_justify="left")
    for heading in ("#", "operator", "keys", "shapes", "strides", "µs", "Σ µs", "before", "line"):
        number = "µs" in heading or heading in {"#", "before"}
        table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "line")
    for place, row in enumerate(finding.operators):
        overload = "" if row.overload == "default" else f".{row.overload}"
        keys = "?" if row.keys is None else " ".join(row.keys)
        table.add_row(
            str(place),
            row.name.removeprefix("aten::") + overload + (" (view)" if row.is_view else ""),
            keys,
            _sizes(row.shapes),
            _sizes(row.strides),
            f"{row.host_seconds * MICRO:.1f}",
            f"{row.cumulative_seconds * MICRO:.0f}",
            f"{row.lead_seconds * MICRO:.1f}",
            row.line or "?",
        )
    console.print(table)


def _sizes(lists: list[list[int]]) -> str:
    return " ".join("×".join(map(str, sizes)) or "·" for sizes in lists)


def _copies(finding: OperatorsFinding, console: Console) -> None:
    total = sum(copy.bytes for copy in finding.copies)
    views = sum(row.is_view is True for row in finding.operators)
    table = Table(title=f"{len(finding.copies)} copies, {total} bytes; {views} views", title_justify="left")
    for heading in ("by", "line", "copies", "bytes"):
        table.add_column(heading, justify="right" if heading in {"copies", "bytes"} else "left")
    groups: dict[tuple[str, str], list[int]] = {}
    for copy in finding.copies:
        groups.setdefault((copy.name, copy.line or "?"), []).append(copy.bytes)
    for (name, line), sizes in sorted(groups.items(), key=lambda group: -sum(group[1])):
        table.add_row(name, line, str(len(sizes)), str(sum(sizes)))
    console.print(table)


def _syncs(finding: OperatorsFinding, console: Console) -> None:
    if not finding.syncs:
        console.print("no sync points: the host needs no value of the device within the step")
    for sync in finding.syncs:
        console.print(f"sync point: {sync.kind} at {sync.line or 'an unknown line'}")


def _native(finding: OperatorsFinding, console: Console) -> None:
    native = finding.native
    if native is None:
        return
    if native.kernel_share is None:
        console.print(f"native functions: not sampled, because {native.reason}")
        return
    sides = ", ".join(f"{getattr(native.sides, side)} {side}" for side in SIDES)
    title = f"native functions: {native.samples} samples ({sides}), kernel share {native.kernel_share:.0%}"
    table = Table(title=title, title_justify="left")
    for heading in ("share", "class", "function", "of", "by"):
        table.add_column(heading, justify="right" if heading == "share" else "left")
    for symbol in native.symbols[:15]:
        table.add_row(
            f"{symbol.share:.1%}", symbol.side, escape(symbol.symbol[:70]), symbol.binary, symbol.rule
        )
    console.print(table)
