"""Where one request's time went, as a bar and a line for each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadtests.report.formatting import milliseconds

WIDTH = 60
"""Cells of the bar."""

_LOOKS = {"queue": ("░", "yellow"), "dispatch": ("█", "blue"), "kernel": ("▓", "green"),
          "sync wait": ("▓", "green"), "other": ("▒", "bright_black")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch of the total. `seconds` None: not measured here, and then `other` holds it too."""

    name: str
    seconds: float | None
    note: str = ""


def parts_of(timings: Mapping[str, Any], sampled: bool) -> list[Part]:
    """The parts that make the total, by the definitions of docs/method.md.

    `timings` are those of an answer. On a CPU kernels are a part of their own; on CUDA they run beside the
    host, which waits. `sampled`: sampling operators ran, which count as dispatch.
    """
    sources = timings.get("sources") or {}
    dispatch = Part("dispatch", timings["dispatch_seconds"], _dispatch_note(sources.get("dispatch"), sampled))
    if timings["sync_wait_seconds"] is None:
        residual = sources.get("kernel") == "residual"
        note = "residual, an upper estimate" if residual else sources.get("kernel") or ""
        beside = Part("kernel", timings["kernel_seconds"], note)
    else:
        beside = Part("sync wait", timings["sync_wait_seconds"], _kernel_beside(timings, sources))
    unknown = [part.name for part in (dispatch, beside) if part.seconds is None]
    note = f"{' and '.join(unknown)} in it: not measured here" if unknown else ""
    return [
        Part("queue", timings["queue_seconds"]),
        dispatch,
        beside,
        Part("other", timings["other_seconds"], note),
    ]


def timing_bar(timings: Mapping[str, Any], sampled: bool, width: int = WIDTH) -> RenderableType:
    """`parts_of` as a bar of `width` cells, and below it percent, milliseconds and how they were found."""
    parts = parts_of(timings, sampled)
    total = timings["total_seconds"]
    bar = Text()
    for part, length in zip(parts, cells([part.seconds or 0.0 for part in parts], width), strict=True):
        glyph, style = _LOOKS[part.name]
        bar.append(glyph * length, style=style)
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    for part in parts:
        glyph, style = _LOOKS[part.name]
        share = "–" if part.seconds is None or total <= 0 else f"{part.seconds / total:.0%}"
        table.add_row(
            Text.assemble((glyph, style), f" {part.name}"),
            share,
            milliseconds(part.seconds),
            Text(part.note, style="dim"),
        )
    return Group(bar, table)


def cells(values: list[float], width: int) -> list[int]:
    """`width` cells shared out in proportion to `values`, by largest remainder; negative counts as 0."""
    kept = [max(0.0, value) for value in values]
    if (total := sum(kept)) <= 0:
        return [0] * len(kept)
    exact = [value / total * width for value in kept]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda place: counts[place] - exact[place])
    for place in by_remainder[: width - sum(counts)]:
        counts[place] += 1
    return counts


def _dispatch_note(source: str | None, sampled: bool) -> str:
    if source != "calibrated":
        return source or ""
    # The sampling operators count wholly as dispatch, so that a bound from below is none any more.
    return "calibrated, sampling and its kernels included" if sampled else "calibrated, a lower estimate"


def _kernel_beside(timings: Mapping[str, Any], sources: Mapping[str, Any]) -> str:
    if timings["kernel_seconds"] is None:
        return "kernels ran beside the host, how long is not known yet"
    return f"kernels ran for {milliseconds(timings['kernel_seconds'])} beside the host ({sources['kernel']})"
