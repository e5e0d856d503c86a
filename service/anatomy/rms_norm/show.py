"""The custom operator in a terminal: four forms of one norm, and what hiding it from the compiler costs."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from service.anatomy.rms_norm.study import RmsNormFinding


def show(finding: RmsNormFinding, console: Console) -> None:
    """Print `finding`."""
    where = f"{finding.rows} × {finding.width}, {finding.dtype}, {finding.device}"
    table = Table(
        "form",
        "µs per call \\[95 %]",
        "kernels generated",
        "difference / tolerance",
        title=f"x + residual, RMS-norm, gate: {where}",
    )
    for form in finding.forms:
        value, low, high = (f"{end * 1e6:.2f}" for end in (form.call.value, form.call.low, form.call.high))
        kernels = "–" if form.kernels is None else str(form.kernels)
        table.add_row(form.name, f"{value} \\[{low}, {high}]", kernels, f"{form.fits:.2f}")
    console.print(table)
    ratio = finding.opaque_ratio
    console.print(
        f"Both compile with {finding.graph_breaks} graph breaks. Opaque to the compiler "
        f"({finding.runs} inside), the norm makes the compiled call take {ratio.value:.2f} "
        f"\\[{ratio.low:.2f}, {ratio.high:.2f}] times as long as the form "
        "that the compiler can fuse."
    )
    for note in finding.notes:
        console.print(f"note: {note}", markup=False)
