"""Load as a terminal shows it: the sentences, per mode and rate one row, and the ladder of concurrencies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

_COLUMNS = (
    "mode",
    "offered/s",
    "served/s",
    "in time/s",
    "in time, %",
    "p50, ms",
    "p99, ms",
    "rejected",
    "cut",
)
_LEFT_OUT = ("in time/s", "p50, ms")
"""Columns left out at a width of 80."""


def print_load(section: dict[str, Any] | None, console: Console, narrow: bool = False) -> None:
    """Print what `load_section` made; nothing without load. `narrow` leaves out _LEFT_OUT."""
    if section is None:
        return
    columns = tuple(column for column in _COLUMNS if not (narrow and column in _LEFT_OUT))
    for group in section["groups"]:
        rates = [dict(zip(_COLUMNS, row, strict=True)) for row in _rates(group)]
        shown = [tuple(row[column] for column in columns) for row in rates]
        console.print(_table(group["title"], columns, shown))
        for caution in group["cautions"]:
            console.print(Text(caution, style="yellow"), soft_wrap=True)
    for sentence in section["sentences"]:
        console.print(Text(f"  → {sentence}", style="bold"), soft_wrap=True)
    if section["meaning"]:
        console.print(Text(f"{section['meaning']} {section['source']}\n"), soft_wrap=True)
    for ladder in section["concurrency"]:
        rows = [
            (row["mode"], str(row["concurrency"]), row["requests"], row["latency"], row["p95"])
            for row in ladder["rows"]
        ]
        console.print(_table(ladder["title"], ("mode", "concurrency", "requests/s", "latency", "p95"), rows))


def _rates(group: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for rate in group["rates"]:
        quantiles = rate["latencies"]
        yield (
            rate["mode"],
            rate["offered"],
            rate["served"][0],
            rate["goodput"][0],
            rate["attainment"][0],
            quantiles[0][0],
            quantiles[2][0],
            str(rate["rejected"]),
            f"{rate['cut']} of {rate['rounds']}",
        )


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="left" if column == "mode" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table
