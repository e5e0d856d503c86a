"""Prints the kernels of a step as a table."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from service.measure.kernel_table import NEAR_NULL, KernelTable

ROWS_SHOWN = 25


def show_kernels(kernels: KernelTable, console: Console) -> None:
    """The kernels by name, and what stands at the null-kernel floor."""
    busy = kernels.busy_seconds * 1e6
    table = Table(
        title=f"{kernels.kernels} kernels per step, {busy:.1f} µs, by the profiler", title_justify="left"
    )
    for heading in ("kernel", "per step", "µs", "share", "× null kernel"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
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
