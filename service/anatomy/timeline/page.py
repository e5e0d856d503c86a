"""A timeline as one self-contained HTML page, which opens offline."""

from __future__ import annotations

import html
import importlib.util
from typing import Any

from service.anatomy.errors import StudyError
from service.anatomy.timeline.blocks import BlockKind, TraceBlock
from service.anatomy.timeline.tracks import TimelineFinding, Track, interval_text, tax_source_text, tax_text

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
