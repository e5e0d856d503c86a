"""Prints a timeline: host over device for each mode on one axis, and a table of times."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.anatomy.timeline.blocks import BlockKind, TraceBlock, outermost
from service.anatomy.timeline.tracks import (
    TimelineFinding,
    Track,
    interval_text,
    speedup_text,
    tax_source_text,
    tax_text,
)

STYLES: dict[str, tuple[str, str, str]] = {
    "launch": ("▒", "magenta", "launch call"),
    "operator": ("█", "blue", "operator"),
    "compiled": ("▓", "yellow", "compiled code"),
    "runtime": ("░", "magenta", "other CUDA call"),
    "kernel": ("█", "green", "kernel"),
    "copy": ("▓", "bright_black", "copy or fill"),
    "idle": ("·", "bright_black", "Python, or idle device"),
}
"""Character, colour and meaning, by what took most of a cell's time; on a tie the first row."""

HOST_LAYERS: tuple[set[BlockKind], ...] = ({"launch", "runtime"}, {"operator"}, {"compiled"})
"""Inner before outer: time in a launch call is not counted as its operator's too."""

LABEL_WIDTH = 24
LEAST_CELLS = 20


def show(finding: TimelineFinding, console: Console) -> None:
    """Print `finding` at the terminal's width."""
    where = f"batch {finding.batch_bucket}, {finding.device}"
    console.print(f"one {finding.phase} step, {where}; blocks are times under the profiler")
    cells = max(console.width - LABEL_WIDTH - 1, LEAST_CELLS)
    longest_us = max(track.profiled_seconds for track in finding.tracks) * 1e6
    for track in finding.tracks:
        for label, painted in _lanes(track, longest_us / cells, cells):
            console.print(Text(f"{label:<{LABEL_WIDTH}}") + painted, no_wrap=True, overflow="crop")
    axis = f"0{f'{longest_us:.0f} µs':>{cells - 1}}"
    console.print(" " * LABEL_WIDTH + axis, no_wrap=True, overflow="crop")
    console.print(_legend(finding), _table(finding))
    if finding.speedup is not None:
        first, second = (track.mode for track in finding.tracks)
        console.print(f"{second} against {first}: {speedup_text(finding.speedup)}", markup=False)
    for note in finding.notes:
        console.print(f"note: {note}", markup=False)
    for file in finding.files:
        console.print(f"written to that folder: {file}", markup=False, soft_wrap=True)
    if not finding.files:
        console.print("[dim]--out FOLDER writes a Perfetto trace and a page.[/]")
    console.print(f"[dim]tax: {tax_source_text(finding)}.[/]")
    console.print("[dim]calls: into the dispatcher; what a composite operator calls in turn is left out.[/]")


def _table(finding: TimelineFinding) -> Table:
    table = Table("mode", "runs as", "step µs", "tax", "calls", "launches", "kernels", "profiled")
    for track in finding.tracks:
        wall = interval_text(track.wall, 1e6, "")
        table.add_row(
            track.mode,
            track.effective,
            wall,
            tax_text(track),
            str(track.operators),
            _count(track.launches),
            _count(track.kernels),
            f"×{track.stretch:.2f}",
        )
    return table


def _lanes(track: Track, cell_us: float, cells: int) -> Iterator[tuple[str, Text]]:
    host = [block for block in track.blocks if block.lane == "host"]
    layers = [list(outermost(host, kinds)) for kinds in HOST_LAYERS]
    yield f"{track.mode} host", paint(layers, cell_us, cells, track.profiled_seconds * 1e6)
    device = [block for block in track.blocks if block.lane == "device"]
    if device:
        yield f"{track.mode} device", paint([device], cell_us, cells, track.profiled_seconds * 1e6)


def paint(layers: list[list[TraceBlock]], cell_us: float, cells: int, end_us: float) -> Text:
    """One lane: each cell shows the kind that took most of its `cell_us`; blank after `end_us`.

    A layer's blocks do not overlap; an earlier layer's time in a cell is subtracted from later ones.
    """
    taken: list[dict[str, float]] = [{} for _ in range(cells)]
    for layer in layers:
        before = [sum(cell.values()) for cell in taken]
        for block in layer:
            for cell, us in _cells_of(block, cell_us, cells):
                taken[cell][block.kind] = taken[cell].get(block.kind, 0.0) + us
        for cell, earlier in enumerate(before):
            for kind in {block.kind for block in layer} & taken[cell].keys():
                taken[cell][kind] = max(taken[cell][kind] - earlier, 0.0)
    most: list[str] = []
    for number, cell_taken in enumerate(taken):
        if number * cell_us >= end_us:
            break
        cell_taken["idle"] = max(cell_us - sum(cell_taken.values()), 0.0)
        most.append(max(STYLES, key=lambda name: cell_taken.get(name, -1.0)))
    text = Text()
    for name, cells_alike in groupby(most):
        mark, style, _ = STYLES[name]
        text.append(mark * len(list(cells_alike)), style)
    return text


def _cells_of(block: TraceBlock, cell_us: float, cells: int) -> Iterator[tuple[int, float]]:
    end = block.begin_us + block.duration_us
    cell = int(block.begin_us / cell_us)
    while cell < cells and cell * cell_us < end:
        yield cell, min(end, (cell + 1) * cell_us) - max(block.begin_us, cell * cell_us)
        cell += 1


def _legend(finding: TimelineFinding) -> Text:
    kinds = {block.kind for track in finding.tracks for block in track.blocks}
    text = Text(" " * LABEL_WIDTH)
    for kind, (mark, style, meaning) in STYLES.items():
        if kind in kinds or kind == "idle":
            text.append(mark, style).append(f" {meaning}   ")
    return text


def _count(number: int | None) -> str:
    return "–" if number is None else str(number)
