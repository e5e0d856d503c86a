"""Prints a step's operators, copies, sync points, compiled code, kernels and way down as tables."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.anatomy.common import MedianSeconds, optional_count, print_notes, table
from service.anatomy.operators.compiled import Lowering, WrapperTimes
from service.anatomy.operators.study import DispatchShare, OperatorsFinding
from service.measure.step_costs import NEAR_NULL, KernelTable
from service.records import SIDES

KERNELS_SHOWN = 25
GUARDS_SHOWN = 8
SYMBOLS_PRINTED = 15
GRAPH_LINES_SHOWN = 24
OPERATORS_SHOWN = 20
_STAGES = {"dynamo": "Dynamo's graph, of torch's functions", "aot": "AOTAutograd's graph, of ATen"}


def show(finding: OperatorsFinding, console: Console) -> None:
    """Print the step of `finding`, its operators, copies, sync points, compiled code and kernels."""
    _head(finding, console)
    console.print(_operators(finding), _copies(finding))
    if not finding.syncs:
        console.print("no sync points: the host needs no value of the device within the step")
    for sync in finding.syncs:
        console.print(f"sync point: {sync.kind} at {sync.line or 'an unknown line'}")
    if finding.graphs is not None:
        _compiled(finding, console)
    if finding.native is not None:
        _native(finding, console)
    if finding.kernel_table is not None:
        show_kernels(finding.kernel_table, console)
    if finding.lowering is not None:
        show_lowering(finding.lowering, console)
    print_notes(finding.notes, console)


def micros(found: MedianSeconds) -> str:
    """A duration with its interval, in microseconds."""
    if found.low is None or found.high is None:
        return f"{found.median_seconds * 1e6:.1f} µs"
    interval = f"{found.low * 1e6:.1f} to {found.high * 1e6:.1f}"
    return f"{found.median_seconds * 1e6:.1f} µs ({interval}, n={found.samples})"


def _head(finding: OperatorsFinding, console: Console) -> None:
    name = finding.mode if finding.mode == finding.effective else f"{finding.mode} (runs {finding.effective})"
    size = f"batch {finding.batch_size} in bucket {finding.batch_bucket}"
    console.print(f"[bold]{name}, {finding.phase}, {size}, {finding.device}[/bold]")
    if finding.reason:
        console.print(f"  {finding.reason}")
    label = "one step" if finding.device == "cpu" else "call returns after"
    compiled = finding.graphs is not None
    rest = "generated code, guards and wrappers" if compiled else "Python, binding and composite operators"
    console.print(
        f"  {label:<20}{micros(finding.step_seconds)}\n"
        f"  in listed operators {finding.operators_seconds * 1e6:.1f} µs, {finding.operators_share:.0%}; "
        f"the rest is {rest}, and {finding.tail_seconds * 1e6:.1f} µs after the last one"
    )
    if finding.dispatch is not None:
        console.print(f"  dispatch            {_dispatch(finding.dispatch)}")
    counted = f"{optional_count(finding.launches)}, kernels {optional_count(finding.kernels)}"
    launches = "none" if finding.device == "cpu" else counted
    console.print(
        f"  profiler            {finding.profiled_seconds.median_seconds * 1e6:.1f} µs per step under it, "
        f"{finding.event_seconds * 1e6:.2f} µs per event taken off; all parts {finding.accounted_share:.0%}\n"
        f"  launches            {launches}{f': {finding.no_device}' if finding.no_device else ''}"
    )


def _dispatch(found: DispatchShare) -> str:
    """Both parts, and where they are from."""
    seconds, kernel = (f"{value * 1e6:.1f} µs" for value in (found.seconds, found.kernel_seconds))
    if found.low is not None and found.high is not None:
        seconds += f" ({found.low * 1e6:.1f} to {found.high * 1e6:.1f})"
    if found.source == "sampled":
        return f"{seconds}, {found.share:.0%} of the step (sampled); kernel {kernel}, the rest"
    return f"{seconds}, {found.share:.0%} of dispatch + kernel (measured; they overlap); kernel {kernel}"


def _operators(finding: OperatorsFinding) -> Table:
    made = Table(title=f"{len(finding.operators)} operators, below autograd")
    for heading in ("#", "operator", "keys", "shapes", "strides", "µs", "Σ µs", "before", "line"):
        number = heading in {"#", "µs", "Σ µs", "before"}
        made.add_column(heading, justify="right" if number else "left", no_wrap=number or heading == "line")
    for index, row in enumerate(finding.operators):
        overload = "" if row.overload == "default" else f".{row.overload}"
        made.add_row(
            str(index),
            row.name.removeprefix("aten::") + overload + (" (view)" if row.is_view else ""),
            "?" if row.keys is None else " ".join(row.keys),
            _sizes(row.shapes),
            _sizes(row.strides),
            f"{row.host_seconds * 1e6:.1f}",
            f"{row.cumulative_seconds * 1e6:.0f}",
            f"{row.lead_seconds * 1e6:.1f}",
            row.line or "?",
        )
    return made


def _sizes(lists: list[list[int]]) -> str:
    return " ".join("×".join(map(str, sizes)) or "·" for sizes in lists)


def _copies(finding: OperatorsFinding) -> Table:
    total = sum(copy.bytes for copy in finding.copies)
    views = sum(row.is_view is True for row in finding.operators)
    groups: dict[tuple[str, str], list[int]] = {}
    for copy in finding.copies:
        groups.setdefault((copy.name, copy.line or "?"), []).append(copy.bytes)
    largest_first = sorted(groups.items(), key=lambda group: -sum(group[1]))
    return table(
        f"{len(finding.copies)} copies, {total} bytes; {views} views",
        ("by", "line", "copies", "bytes"),
        ((name, line, str(len(sizes)), str(sum(sizes))) for (name, line), sizes in largest_first),
        right=("copies", "bytes"),
    )


def _native(finding: OperatorsFinding, console: Console) -> None:
    native = finding.native
    assert native is not None
    if native.kernel_share is None:
        console.print(f"native functions: not sampled, because {native.reason}")
        return
    sides = ", ".join(f"{getattr(native.sides, side)} {side}" for side in SIDES)
    rows = (
        (f"{one.share:.1%}", one.side, escape(one.symbol[:70]), one.binary, one.rule)
        for one in native.symbols[:SYMBOLS_PRINTED]
    )
    title = f"native functions: {native.samples} samples ({sides}), kernel share {native.kernel_share:.0%}"
    console.print(table(title, ("share", "class", "function", "of", "by"), rows, right=("share",)))


def _compiled(finding: OperatorsFinding, console: Console) -> None:
    guards = finding.guards or []
    lines = len((finding.generated_code or "").splitlines())
    console.print(
        f"{finding.graphs} graph, {finding.graph_break_count} graph breaks, {finding.recompiles} recompiles, "
        f"{len(guards)} guards, {lines} lines of generated code"
    )
    for found in finding.graph_breaks or []:
        console.print(f"graph break at {found.line or 'an unknown line'}: {found.reason}")
    kernels = (
        (
            str(kernel.calls),
            kernel.kind,
            kernel.name if len(kernel.name) < 40 else f"{kernel.name[:30]}…{kernel.name[-6:]}",
            " ".join(name.removeprefix("aten::") for name in kernel.operators) or "?",
        )
        for kernel in finding.fused_kernels or []
    )
    title = "kernels of the generated code, and the operators they stand for"
    console.print(table(title, ("calls", "by", "kernel", "operators"), kernels, right=("calls",)))
    examples = {guard.kind: guard.expression for guard in reversed(guards)}
    kinds = Counter(guard.kind for guard in guards).most_common(GUARDS_SHOWN)
    rows = ((str(count), kind, escape(examples[kind][:90])) for kind, count in kinds)
    title = "guards by kind, checked before every call"
    console.print(table(title, ("guards", "kind", "for example"), rows, right=("guards",)))
    if finding.wrapper is not None:
        console.print(_wrapper(finding.wrapper))


def _wrapper(times: WrapperTimes) -> Table:
    parts = (
        ("guards", times.guards, "with and without evaluating them"),
        ("wrappers", times.wrappers, "what is left around the generated code"),
        ("generated code", times.generated, "called directly; on a CPU with its kernels"),
        ("whole", times.whole, "the step"),
    )
    rows = ((name, micros(found), how) for name, found, how in parts)
    return table("one call, taken apart", ("part", "time", "how"), rows)


def show_kernels(kernels: KernelTable, console: Console) -> None:
    """The kernels by name, and what stands at the null-kernel floor."""
    numbers = ("per step", "µs", "share", "× null kernel")
    rows = (
        (
            escape(row.name[:70]),
            f"{row.per_step:g}",
            f"{row.seconds * 1e6:.2f}",
            f"{row.share:.1%}",
            "?" if row.null_times is None else f"{row.null_times:.1f}",
        )
        for row in kernels.rows[:KERNELS_SHOWN]
    )
    title = f"{kernels.kernels} kernels per step, {kernels.busy_seconds * 1e6:.1f} µs, by the profiler"
    console.print(table(title, ("kernel", *numbers), rows, right=numbers))
    _more(len(kernels.rows) - KERNELS_SHOWN, console)
    if kernels.near_null_share is not None and kernels.null_kernel_seconds is not None:
        console.print(
            f"{kernels.near_null_share:.0%} of kernel time is in kernels that take less than {NEAR_NULL:g} "
            f"times the null kernel ({kernels.null_kernel_seconds * 1e6:.2f} µs in a graph): "
            "fusing them away is all that shortens it"
        )
    if kernels.left_out:
        console.print(
            f"note: {kernels.left_out} of {kernels.steps + kernels.left_out} profiled steps had another "
            "number of kernels and are left out"
        )


def _more(count: int, console: Console) -> None:
    if count > 0:
        console.print(f"and {count} more names; --json has all")


def show_lowering(found: Lowering, console: Console) -> None:
    """Print `found`; long parts in their beginning."""
    for graph in found.graphs or []:
        console.print(f"{_STAGES[graph.stage]}: {graph.operations} calls, {graph.lines} lines")
        lines = graph.text.splitlines()
        for line in lines[:GRAPH_LINES_SHOWN]:
            console.print(f"  {line}", markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
        if graph.lines > GRAPH_LINES_SHOWN:
            further = graph.lines - GRAPH_LINES_SHOWN
            console.print(f"  … {further} more lines; --json has the first {len(lines)}")
    _decomposition(found, console)
    _dispatch_table(found, console)
    counts = found.registry
    console.print(
        f"torch's registry: {counts.overloads} overloads of {counts.operators} ATen operators; core ATen are "
        f"{counts.core_overloads} overloads of {counts.core_operators}"
    )


def _decomposition(lowering: Lowering, console: Console) -> None:
    found = lowering.decomposition
    if found is None:
        console.print(f"no core ATen form: {lowering.no_decomposition}", markup=False)
        return
    title = (
        f"core ATen: {found.before} operators ({found.distinct_before} different) become {found.after} "
        f"({found.distinct_after} different), of which {found.not_core} are not core"
    )
    rows = (
        (row.name.removeprefix("aten::"), str(row.before), str(row.after), "yes" if row.core else "no")
        for row in found.operators[:OPERATORS_SHOWN]
    )
    console.print(table(title, ("operator", "before", "after", "core"), rows, right=("before", "after")))
    _more(len(found.operators) - OPERATORS_SHOWN, console)


def _dispatch_table(lowering: Lowering, console: Console) -> None:
    found = lowering.dispatch_table
    rows = []
    for (kind, place, through), group in groupby(
        found.entries, lambda entry: (entry.kind, entry.place, entry.falls_through)
    ):
        keys = [entry.key for entry in group]
        named = keys[0] if len(keys) == 1 else f"{keys[0]} … {keys[-1]} ({len(keys)})"
        rows.append((named, f"{kind}, falls through" if through else kind, place))
    title = f"dispatch table of {found.operator}: {len(found.entries)} keys, neighbours alike in one row"
    console.print(table(title, ("keys", "how", "registered at"), rows))
