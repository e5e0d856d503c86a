"""Study of one step as host and device blocks, two modes on one axis, and what of it was no kernel."""

from __future__ import annotations

import gzip
import html
import importlib.util
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.anatomy.common import (
    Report,
    StudyError,
    attached_note,
    resolve_bucket,
    resolve_case,
    resolve_modes,
)
from service.anatomy.timeline.tracks import (
    BlockKind,
    Timed,
    TimelineFinding,
    TraceBlock,
    Track,
    interval_text,
    outermost,
    record_step,
    speedup_text,
    tax_by_kernels,
    tax_by_samples,
    tax_source_text,
    tax_text,
    time_steps,
)
from service.measure.cases import Bench
from service.measure.rounds import paired_median_ratio
from service.modes import MODES
from service.records import Phase
from service.statistics.intervals import Interval, median_interval


class TimelineArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`against` is a second mode on the same axis; `out` is a folder for a trace and, with `page`, a page."""

    mode: str = "eager"
    against: str | None = None
    batch_size: int = 1
    phase: Phase = "decode"
    out: str | None = None
    page: bool = True


def draw_timeline(bench: Bench, arguments: TimelineArguments, report: Report) -> TimelineFinding:
    """Record the steps. Raises StudyError for arguments that cannot work or a mode that does not compile."""
    if arguments.out is not None and arguments.page:
        check_page()
    bucket = resolve_bucket(bench, arguments.batch_size)
    modes = resolve_modes(bench, arguments.mode)
    if arguments.against is not None:
        if arguments.against == arguments.mode:
            raise StudyError("invalid_request", "against: name another mode than mode", "against")
        modes += resolve_modes(bench, arguments.against, "against")
    cases = [resolve_case(bench, mode, bucket, arguments.phase, report) for mode in modes]
    notes = attached_note()
    report("timing steps without a profiler")
    timed = time_steps(bench, cases, report)
    report("recording steps with the profiler")
    tracks = [_track(bench, one) for one in timed]
    finding = TimelineFinding(
        device=bench.device.type,
        batch_bucket=bucket,
        phase=arguments.phase,
        tracks=tracks,
        speedup=_speedup(*timed),
        files=[],
        notes=notes,
    )
    if arguments.out is None:
        return finding
    return msgspec.structs.replace(finding, files=write(finding, Path(arguments.out), arguments.page))


def _speedup(first: Timed, second: Timed | None = None) -> Interval | None:
    return None if second is None else paired_median_ratio(first.rounds, second.rounds)


def _track(bench: Bench, timed: Timed) -> Track:
    case = timed.case
    wall = median_interval(timed.seconds)
    effect = MODES[case.mode].effect(bench.device.type)
    recorded = record_step(bench, case)
    counted = recorded.counted
    kernels = counted.kernel_seconds
    tax = tax_by_samples(timed.samples) if kernels is None else tax_by_kernels(kernels, wall)
    return Track(
        mode=case.mode,
        effective=effect.name,
        reason=effect.reason,
        wall=wall,
        tax=tax,
        no_tax=None if tax else timed.no_samples or counted.unknown,
        profiled_seconds=recorded.profiled_seconds,
        stretch=recorded.profiled_seconds / wall.value,
        operators=counted.operators,
        kernels=counted.kernels,
        launches=counted.launches,
        kernel_seconds=counted.kernel_seconds,
        blocks=recorded.blocks,
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


COLOURS: dict[BlockKind, str] = {
    "mark": "#D9CBA3", "operator": "#3D85C6", "compiled": "#E9A23B", "launch": "#C2549D",
    "runtime": "#8D6CAB", "kernel": "#5B8C5A", "copy": "#8A94A6",
}  # fmt: skip
MEANINGS: dict[BlockKind, str] = {
    "mark": "the step", "operator": "operator call", "compiled": "compiled code", "launch": "launch call",
    "runtime": "other CUDA call", "kernel": "kernel", "copy": "copy or fill",
}  # fmt: skip

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;color:#1b1f24}h1{font-size:1.4rem}p{max-width:60rem}"
    "td,th{padding:.2rem .9rem .2rem 0;text-align:left}"
)


def check_page() -> None:
    """Raise StudyError, with the remedy, where plotly, which draws the page, is not installed."""
    if importlib.util.find_spec("plotly") is None:
        raise StudyError(
            "unsupported_here", "the page needs plotly: pip install 'launchbound[report]'", "out"
        )


def page(finding: TimelineFinding) -> str:
    """The page as HTML. Raises StudyError as `check_page` does."""
    check_page()
    title = f"One {finding.phase} step, batch {finding.batch_bucket}, {finding.device}"
    figure = _figure(finding).to_html(full_html=False, include_plotlyjs=True)
    rows = "".join(map(_row, finding.tracks))
    source = html.escape(tax_source_text(finding))
    notes = "".join(f"<p>Note: {html.escape(note)}.</p>" for note in finding.notes)
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><table><tr><th>mode<th>runs as<th>step<th>tax<th>calls<th>launches"
        f"<th>under the profiler</tr>{rows}</table>{figure}"
        f"<p>Blocks are times under the profiler, which lengthens a step by the factor in the last column: "
        f"they show the order of events. Step and tax are measured without it. Tax: {source}.</p>"
        f"{notes}</html>\n"
    )


def _row(track: Track) -> str:
    wall = interval_text(track.wall, 1e6, " µs")
    cells = (
        track.mode,
        track.effective,
        wall,
        tax_text(track),
        str(track.operators),
        "–" if track.launches is None else str(track.launches),
        f"{1e6 * track.profiled_seconds:.0f} µs, ×{track.stretch:.2f}",
    )
    return "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>"


def _figure(finding: TimelineFinding) -> Any:  # noqa: ANN401 - plotly has no types
    from plotly import graph_objects

    figure = graph_objects.Figure()
    rows: list[str] = []
    for track in finding.tracks:
        for lane in sorted({(b.lane, b.row, b.depth) for b in track.blocks}, key=_top_down):
            rows.append(_label(track, *lane))
    shown: set[BlockKind] = set()
    for track in finding.tracks:
        for kind in COLOURS:
            blocks = [block for block in track.blocks if block.kind == kind]
            if blocks:
                figure.add_bar(**_bars(track, blocks), showlegend=kind not in shown)
                shown.add(kind)
    figure.update_yaxes(categoryorder="array", categoryarray=rows[::-1], automargin=True)
    figure.update_xaxes(title={"text": "µs since the step began, under the profiler"}, rangemode="tozero")
    figure.update_layout(
        barmode="overlay",
        bargap=0.1,
        template="plotly_white",
        height=140 + 26 * len(rows),
        legend={"orientation": "h", "y": 1, "yanchor": "bottom"},
        margin={"l": 10, "r": 10, "t": 60},
    )
    return figure


def _bars(track: Track, blocks: list[TraceBlock]) -> dict[str, Any]:
    kind = blocks[0].kind
    return {
        "orientation": "h",
        "name": MEANINGS[kind],
        "legendgroup": kind,
        "y": [_label(track, block.lane, block.row, block.depth) for block in blocks],
        "base": [block.begin_us for block in blocks],
        "x": [block.duration_us for block in blocks],
        "text": [html.escape(block.name) for block in blocks],
        "textposition": "none",
        "marker": {"color": COLOURS[kind], "line": {"width": 0}},
        "hovertemplate": "%{text}<br>%{x:.1f} µs from %{base:.1f} µs<extra>" + track.mode + "</extra>",
    }


def _top_down(lane: tuple[str, int, int]) -> tuple[bool, int, int]:
    return lane[0] == "device", lane[1], lane[2]


def _label(track: Track, lane: str, row: int, depth: int) -> str:
    return f"{track.mode} · host {depth}" if lane == "host" else f"{track.mode} · stream {row}"


TRACE_FILE = "timeline.trace.json.gz"
PAGE_FILE = "timeline.html"
DEVICE_ROWS = 1000
"""Added to a stream's number, so that no stream has the row of a host thread."""


def write(finding: TimelineFinding, folder: Path, with_page: bool) -> list[str]:
    """Write the trace, and the page where it is wanted, into `folder`, which is created; returns their names.

    Raises StudyError where that fails, or where plotly, which draws the page, is not installed.
    """
    files = {TRACE_FILE: gzip.compress(json.dumps(trace(finding)).encode())}
    if with_page:
        files[PAGE_FILE] = page(finding).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise StudyError("invalid_request", f"cannot write to {folder}: {error.strerror}", "out") from error
    return list(files)


def trace(finding: TimelineFinding) -> dict[str, Any]:
    """All tracks in the Chrome trace format (JSON object form): one process each, from 0 µs."""
    events = [
        event for number, track in enumerate(finding.tracks, start=1) for event in _process(track, number)
    ]
    about = f"one {finding.phase} step, batch {finding.batch_bucket}, {finding.device}"
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"about": about}}


def _process(track: Track, number: int) -> Iterator[dict[str, Any]]:
    yield _named("process_name", number, 0, f"{track.mode} ({track.effective})")
    yield {"ph": "M", "name": "process_sort_index", "pid": number, "tid": 0, "args": {"sort_index": number}}
    for lane, row in sorted({(block.lane, block.row) for block in track.blocks}, reverse=True):
        name = "host" if lane == "host" else f"device, stream {row}"
        yield _named("thread_name", number, _row_number(lane, row), name)
    for index, block in enumerate(track.blocks):
        row = _row_number(block.lane, block.row)
        yield {
            "ph": "X",
            "name": block.name,
            "cat": block.kind,
            "pid": number,
            "tid": row,
            "ts": block.begin_us,
            "dur": block.duration_us,
            "args": {"depth": block.depth},
        }
        if block.launched_by is not None:
            call = track.blocks[block.launched_by]
            flow = {"cat": "launch", "name": "launch", "id": f"{number}.{index}", "pid": number}
            yield {**flow, "ph": "s", "tid": _row_number(call.lane, call.row), "ts": call.begin_us}
            yield {**flow, "ph": "f", "bp": "e", "tid": row, "ts": block.begin_us}


def _row_number(lane: str, row: int) -> int:
    return row if lane == "host" else DEVICE_ROWS + row


def _named(what: str, process: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": row, "args": {"name": name}}
