"""Prints a step's operators, copies, sync points, compiled code, kernels and way down as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.common import MedianSeconds
from service.anatomy.operators.calls import DispatchEntry
from service.anatomy.operators.compiled import WrapperTimes
from service.anatomy.operators.lowering import (
    Decomposition,
    DispatchTable,
    GraphText,
    Lowering,
)
from service.anatomy.operators.study import DispatchShare, OperatorsFinding
from service.measure.step_costs import NEAR_NULL, KernelTable
from service.records import SIDES

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


def _table(title: str, *headings: str, numbers: Sequence[str] = ()) -> Table:
    """An empty table whose `numbers` among the columns stand right."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in numbers else "left")
    return table


def _operators(finding: OperatorsFinding, console: Console) -> None:
    table = Table(title=f"{len(finding.operators)} operators, below autograd", title_justify="left")
    for heading in ("#", "operator", "keys", "shapes", "strides", "µs", "Σ µs", "before", "line"):
        number = "µs" in heading or heading in {"#", "before"}
        table.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "line")
    for index, row in enumerate(finding.operators):
        overload = "" if row.overload == "default" else f".{row.overload}"
        keys = "?" if row.keys is None else " ".join(row.keys)
        table.add_row(
            str(index),
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
    title = f"{len(finding.copies)} copies, {total} bytes; {views} views"
    table = _table(title, "by", "line", "copies", "bytes", numbers=("copies", "bytes"))
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
    table = _table(title, "share", "class", "function", "of", "by", numbers=("share",))
    for symbol in native.symbols[:15]:
        table.add_row(
            f"{symbol.share:.1%}", symbol.side, escape(symbol.symbol[:70]), symbol.binary, symbol.rule
        )
    console.print(table)


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
    title = "kernels of the generated code, and the operators they stand for"
    table = _table(title, "calls", "by", "kernel", "operators", numbers=("calls",))
    for kernel in finding.fused_kernels or []:
        short = kernel.name if len(kernel.name) < 40 else f"{kernel.name[:30]}…{kernel.name[-6:]}"
        names = " ".join(name.removeprefix("aten::") for name in kernel.operators) or "?"
        table.add_row(str(kernel.calls), kernel.kind, short, names)
    console.print(table)


def _guards(finding: OperatorsFinding, console: Console) -> None:
    kinds = Counter(guard.kind for guard in finding.guards or [])
    title = "guards by kind, checked before every call"
    table = _table(title, "guards", "kind", "for example", numbers=("guards",))
    for kind, count in kinds.most_common(GUARDS_SHOWN):
        example = next(guard.expression for guard in finding.guards or [] if guard.kind == kind)
        table.add_row(str(count), kind, escape(example[:90]))
    console.print(table)


def _wrapper(times: WrapperTimes, console: Console) -> None:
    table = _table("one call, taken apart", "part", "µs", "95 %", "how")
    for name, found, how in (
        ("guards", times.guards, "with and without evaluating them"),
        ("wrappers", times.wrappers, "what is left around the generated code"),
        ("generated code", times.generated, "called directly; on a CPU with its kernels"),
        ("whole", times.whole, "the step"),
    ):
        low, high = (f"{(side or 0.0) * 1e6:.1f}" for side in (found.low, found.high))
        table.add_row(name, f"{found.median_seconds * 1e6:.1f}", f"{low} to {high}", how)
    console.print(table)


ROWS_SHOWN = 25


def show_kernels(kernels: KernelTable, console: Console) -> None:
    """The kernels by name, and what stands at the null-kernel floor."""
    busy = kernels.busy_seconds * 1e6
    numbers = ("per step", "µs", "share", "× null kernel")
    title = f"{kernels.kernels} kernels per step, {busy:.1f} µs, by the profiler"
    table = _table(title, "kernel", *numbers, numbers=numbers)
    for row in kernels.rows[:ROWS_SHOWN]:
        times = "?" if row.null_times is None else f"{row.null_times:.1f}"
        name = escape(row.name[:70])
        table.add_row(name, f"{row.per_step:g}", f"{row.seconds * 1e6:.2f}", f"{row.share:.1%}", times)
    console.print(table)
    if len(kernels.rows) > ROWS_SHOWN:
        console.print(f"and {len(kernels.rows) - ROWS_SHOWN} more names; --json has all")
    if kernels.near_null_share is not None and kernels.null_kernel_seconds is not None:
        null = kernels.null_kernel_seconds * 1e6
        console.print(
            f"{kernels.near_null_share:.0%} of kernel time is in kernels that take less than {NEAR_NULL:g} "
            f"times the null kernel ({null:.2f} µs in a graph): fusing them away is all that shortens it"
        )
    if kernels.left_out:
        console.print(
            f"note: {kernels.left_out} of {kernels.steps + kernels.left_out} profiled steps had another "
            "number of kernels and are left out"
        )


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
    title = (
        f"core ATen: {found.before} operators ({found.distinct_before} different) become {found.after} "
        f"({found.distinct_after} different), of which {found.not_core} are not core"
    )
    table = _table(title, "operator", "before", "after", "core", numbers=("before", "after"))
    for row in found.operators[:OPERATORS_SHOWN]:
        name = row.name.removeprefix("aten::")
        table.add_row(name, str(row.before), str(row.after), "yes" if row.core else "no")
    console.print(table)
    if len(found.operators) > OPERATORS_SHOWN:
        console.print(f"and {len(found.operators) - OPERATORS_SHOWN} more names; --json has all")


def _dispatch_table(found: DispatchTable, console: Console) -> None:
    title = f"dispatch table of {found.operator}: {len(found.entries)} keys, neighbours alike in one row"
    table = _table(title, "keys", "how", "registered at")
    for (kind, place, through), entries in groupby(found.entries, _kernel):
        keys = [entry.key for entry in entries]
        named = keys[0] if len(keys) == 1 else f"{keys[0]} … {keys[-1]} ({len(keys)})"
        table.add_row(named, f"{kind}, falls through" if through else kind, place)
    console.print(table)


def _kernel(entry: DispatchEntry) -> tuple[str, str, bool]:
    return entry.kind, entry.place, entry.falls_through
