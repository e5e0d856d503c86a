"""The last thing on the terminal: how each section ended, the modes beside each other, goals and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from service.gpu_check.goal import Goal
from service.gpu_check.rows import Row
from service.gpu_check.runner import Ended

STYLES = {"met": "green", "missed": "bold red", "undecided": "yellow", "unknown": "yellow"}


def show_sections(console: Console, ended: Sequence[Ended]) -> None:
    """How each section ended, and why where it did not end well."""
    table = Table("section", "ended", "s", "rows", "why")
    for one in ended:
        style = "green" if one.well else "bold red"
        table.add_row(
            one.name, f"[{style}]{one.how}[/]", f"{one.seconds:.0f}", str(one.rows), _plain(one.detail)
        )
    console.print(table)


def show_cells(console: Console, cells: Sequence[Row]) -> None:
    """The modes at each batch, microseconds per decode step; nothing without cells."""
    if not cells:
        return
    columns = ("step_seconds", "dispatch_seconds", "span_seconds", "kernel_seconds")
    table = Table("mode", "batch", "step µs", "dispatch", "span", "kernel", "kernels", "launches", "× eager")
    for row in cells:
        micros = [_shown(row[name], 1e6) for name in columns]
        counts = [_shown(row[name]) for name in ("kernels", "launches")]
        ends = (row["low"], row["high"])
        span = "" if None in ends else f" [{ends[0]:.2f}, {ends[1]:.2f}]"
        speedup = "–" if row["speedup"] is None else f"{row['speedup']:.2f}{span}".replace("[", "\\[")
        name = row["mode"] if row["effective"] == row["mode"] else f"{row['mode']} (ran {row['effective']})"
        table.add_row(name, str(row["batch"]), *micros, *counts, speedup)
    console.print(table)


def show_sizes(console: Console, rows: Iterable[Row]) -> None:
    """The larger models, and how near their steps come to the memory's bandwidth."""
    found = list(rows)
    sizes = [row for row in found if row["kind"] == "size"]
    if not sizes:
        return
    tables = {_case(row): row["kernels"] for row in found if row["kind"] == "kernels"}
    table = Table("model", "mode", "batch", "wall µs", "dispatch", "device", "kernels", "of bandwidth")
    for row in sizes:
        micros = [_shown(row[name], 1e6) for name in ("wall_seconds", "dispatch_seconds", "device_seconds")]
        kernels, roof = tables.get(_case(row)), row["device_roofline"]
        count = _shown(kernels["kernels"] if kernels else None)
        share = "–" if roof is None else f"{roof['share']['value']:.0%}"
        table.add_row(row["model"], row["mode"], str(row["batch"]), *micros, count, share)
    console.print(table)


def _case(row: Row) -> tuple[str, str, int]:
    return row["model"], row["mode"], row["batch"]


def show_goals(console: Console, goals: Sequence[Goal]) -> None:
    """Every goal with what was found; those that only inform are marked."""
    table = Table("goal", "found", "wanted", "verdict")
    for goal in goals:
        word = goal.verdict if goal.decides else f"{goal.verdict} (informs)"
        name, found = _plain(goal.name), _plain(goal.found)
        table.add_row(name, found, goal.goal, f"[{STYLES[goal.verdict]}]{word}[/]")
    console.print(table)


def _shown(number: float | None, scale: float = 1.0) -> str:
    return "–" if number is None else f"{number * scale:.0f}"


def _plain(text: str) -> str:
    """Without rich's markup: text of a log may hold brackets."""
    return text.replace("[", "\\[")
