"""The report's heat map of the kernel share, drawn as bars: plotly's basic bundle has no heat map."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from dashboards.theme import PART_COLOURS
from loadtests.report.formatting import share_span
from loadtests.report.phases import Phase
from loadtests.report.plotting import Plot, base
from loadtests.report.summaries import Verdict
from loadtests.report.verdict import Findings

_SCALE = [
    [0.0, PART_COLOURS["dispatch"]], [0.2, "#E3B4D2"], [0.35, "#EDEAE4"], [0.5, "#BFD3BE"],
    [1.0, PART_COLOURS["kernel"]],
]  # fmt: skip
"""From dispatch's colour to kernel's, with the bounds 0.2 and 0.5 where the tone changes."""

_COLOUR_BAR = {
    "color": [0],
    "cmin": 0,
    "cmax": 1,
    "colorscale": _SCALE,
    "showscale": True,
    "colorbar": {
        "title": {"text": "kernel share"},
        "tickvals": [0, 0.2, 0.5, 1],
        "thickness": 12,
        "outlinewidth": 0,
    },
}
"""Markers of a trace without points, there for the colour bar: on bars plotly.js warns about the text."""

_CELL_WIDTH = 0.97
"""Of one cell of the heat map, in columns."""


def index_map(findings: Findings) -> Plot | None:
    """Decode's kernel share with its interval, by mode and batch size; nothing where it is not known."""
    verdicts = [verdict for verdict in findings.main if verdict.baseline.decode.index is not None]
    if not verdicts:
        return None
    modes = [summary.cell.mode for summary in verdicts[0].modes][::-1]
    figure = base("", "", height=110 + 52 * len(modes))
    for column, verdict in enumerate(verdicts):
        _add_column(findings, figure, column, verdict, modes)
    figure.add_scatter(x=[None], y=[None], mode="markers", marker=_COLOUR_BAR, hoverinfo="skip")
    figure.update_xaxes(
        title=None,
        showgrid=False,
        side="top",
        range=[-0.5, len(verdicts) - 0.5],
        tickvals=list(range(len(verdicts))),
        ticktext=[f"batch {verdict.batch_size}" for verdict in verdicts],
    )
    figure.update_yaxes(title=None, showgrid=False)
    figure.update_layout(
        margin={"t": 36, "b": 16},
        barmode="overlay",
        bargap=0.1,
        showlegend=False,
    )
    return Plot("index", figure, {"least_width": str(220 + 84 * len(verdicts))})


def _add_column(
    findings: Findings, figure: go.Figure, column: int, verdict: Verdict, modes: list[str]
) -> None:
    decodes = [verdict.of(mode).decode for mode in modes]
    indices = [decode.index for decode in decodes]
    figure.add_bar(
        y=[findings.label(mode) for mode in modes],
        x=[None if index is None else _CELL_WIDTH for index in indices],
        base=column - _CELL_WIDTH / 2,
        orientation="h",
        marker={"color": [_colour_of(index) for index in indices], "line": {"width": 0}},
        text=["" if d.index is None else f"<b>{d.index:.2f}</b><br>{_ends(d)}" for d in decodes],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 12, "color": "#1b1f24"},
        customdata=indices,
        hovertemplate=f"%{{y}}, batch {verdict.batch_size}: %{{customdata:.3f}}<extra></extra>",
    )


def _ends(decode: Phase) -> str:
    return f"<span style='font-size:10px'>{share_span(decode.interval)}</span>"


def _colour_of(index: float | None) -> str:
    if index is None:
        return "rgba(0,0,0,0)"
    (colour,) = sample_colorscale(_SCALE, [index])
    return str(colour)
