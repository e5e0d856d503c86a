"""Prints amortisation and budget: dispatch against kernels by batch, crossover and verdict."""

from __future__ import annotations

from math import isinf

from rich.console import Console
from rich.table import Table

from service.anatomy.budget.study import BatchPoint, Budget, BudgetFinding, ModeCrossover, ModeGain, Quantity
from service.measure.step_costs import bandwidth_text
from service.records import MemoryBandwidth
from service.statistics.boundedness import Roofline
from service.statistics.intervals import Interval

_STYLES = {"launch-bound": "red", "balanced": "yellow", "kernel-bound": "green"}


def show(finding: BudgetFinding, console: Console) -> None:
    """Print `finding`."""
    if finding.points:
        console.print(_points(finding.points, finding.device))
    for crossover in finding.crossovers:
        console.print(f"{crossover.mode}: {_crossover(crossover)}", highlight=False)
    _budget(finding.budget, finding.device, console)
    for gain in finding.gains:
        console.print(_gain(gain, finding.budget), markup=False)
    for note in finding.notes:
        console.print(f"note: {note}", markup=False)
    if finding.points:
        cpu = finding.device == "cpu"
        sampled = "Dispatch and kernel are shares of the step, by samples of its thread. " if cpu else ""
        graphs = "a CPU has no graphs that do it" if cpu else "graphs do it"
        console.print(
            f"[dim]µs per decode step, {finding.rounds} interleaved rounds \\[95 % interval]. {sampled}"
            "Without dispatch: about so many times as fast, with this mode's kernels, if one empty operator "
            f"({finding.null_kernel_seconds * 1e6:.1f} µs) were all the host had to issue; {graphs}.[/]"
        )
    if finding.bandwidth:
        console.print(f"[dim]{_about_bandwidth(finding.bandwidth)}[/]")


def _points(points: list[BatchPoint], device: str) -> Table:
    table = Table(
        "mode",
        "batch",
        "step",
        "dispatch",
        "kernel",
        "dispatch per sequence",
        "kernel share",
        "without dispatch",
        "of bandwidth",
        f"against {points[0].mode}",
        title=f"amortisation on {device}",
    )
    for index, point in enumerate(points):
        if index and point.mode != points[index - 1].mode:
            table.add_section()
        name = point.mode if point.mode == point.effective else f"{point.mode} ({point.effective})"
        batch = f"{point.batch_size} [red]disturbed[/]" if point.disturbed else str(point.batch_size)
        table.add_row(
            name,
            batch,
            f"{point.step.value * 1e6:.0f}",
            _micros(point.dispatch_seconds),
            _micros(point.kernel_seconds),
            f"{point.dispatch_seconds_per_sequence * 1e6:.0f}",
            _kernel_share(point, device),
            f"{point.without_dispatch_speedup:.2f} ×",
            _share(point.roofline),
            f"{point.speedup.value:.2f} × \\[{point.speedup.low:.2f}, {point.speedup.high:.2f}]",
        )
    return table


def _kernel_share(found: BatchPoint | Budget, device: str) -> str:
    """With its class on a GPU only: on a CPU dispatch and kernels follow one another."""
    share = f"{found.device_bound_index:.0%}"
    return share if device == "cpu" else f"{share} [{_STYLES[found.bound]}]{found.bound}[/]"


def _share(found: Roofline | None) -> str:
    return "–" if found is None else f"{found.share.value:.0%}"


def _about_bandwidth(bandwidth: MemoryBandwidth) -> str:
    """What `of bandwidth` is a share of, and what caches make of it."""
    return (
        "Of bandwidth: the bytes that a step must move (weights, keys and values in use, what enters and "
        f"leaves matrix products) over its kernels, against {bandwidth_text(bandwidth)}. That buffer is as "
        f"large as the weights: where they fit in caches, so does it."
    )


def _budget(budget: Budget, device: str, console: Console) -> None:
    table = Table(
        "quantity", "value", "from", title=f"budget of one step, {budget.mode}, batch {budget.batch_size}"
    )
    table.add_row("operators per step, below autograd", *_quantity(budget.ops_per_step))
    table.add_row("× µs per operator", *_quantity(budget.microseconds_per_op))
    table.add_row("= dispatch, µs", f"{budget.dispatch_microseconds:.4g}", "")
    table.add_row("against kernel, µs", *_quantity(budget.kernel_microseconds))
    console.print(table)
    console.print(f"kernel share {_kernel_share(budget, device)}", highlight=False)
    console.print(f"will compile help me? {budget.will_compile_help}", highlight=False)


def _gain(gain: ModeGain, budget: Budget) -> str:
    """A mode's measured speed-up, and what it leaves of the budgeted mode's dispatch and kernels."""
    left = ", ".join(
        f"{ratio.value:.0%} of {part}"
        for part, ratio in (("dispatch", gain.dispatch_ratio), ("kernel", gain.kernel_ratio))
        if ratio is not None
    )
    speedup = gain.speedup
    return (
        f"{gain.mode} against {budget.mode}: {speedup.value:.2f} times as fast "
        f"[{speedup.low:.2f}, {speedup.high:.2f}], with {left}"
    )


def _quantity(quantity: Quantity) -> tuple[str, str]:
    return f"{quantity.value:.4g}", quantity.source


def _micros(seconds: Interval) -> str:
    ends = [seconds.low * 1e6, seconds.high * 1e6]
    span = "no interval" if any(map(isinf, ends)) else f"{ends[0]:.0f}, {ends[1]:.0f}"
    return f"{seconds.value * 1e6:.0f} \\[{span}]"


def _crossover(crossover: ModeCrossover) -> str:
    if crossover.where == "several":
        return "kernels take longer than dispatch at some batch, and shorter at a larger one"
    if crossover.batch_size is None:
        return "no crossover known"
    text = {
        "at": f"kernels take as long as dispatch at batch {crossover.batch_size:.1f}",
        "below": f"kernels take longer from batch {crossover.batch_size:.0f}, the smallest measured, on",
        "above": f"dispatch still takes longer at batch {crossover.batch_size:.0f}, the largest measured",
    }
    return text[crossover.where]
