"""The report's charts: latency, throughput, parts, kernel share, latency over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from dashboards.theme import PART_COLOURS
from loadtests.plan.cells import BASELINE
from loadtests.report.formatting import share_span
from loadtests.report.phases import PhaseMeans
from loadtests.report.plotting import SYMBOLS, Plot, base, batch_axis, by_mode, colour, log_axis, translucent
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import Findings
from loadtests.run.machine import marked_rounds
from service.records import PHASES
from service.statistics.intervals import Interval


def _lines(
    findings: Findings, figure: go.Figure, value: Callable[[Summary], Interval], scale: float, unit: str
) -> None:
    ends = []
    for mode, summaries in by_mode(findings).items():
        batches = [summary.cell.batch_size for summary in summaries]
        values = [value(summary) for summary in summaries]
        low = [scale * v.low for v in values]
        high = [scale * v.high for v in values]
        ends += [scale * v.value for v in values]
        if all(v.samples > 1 for v in values):
            ends += low + high
            figure.add_scatter(
                x=batches + batches[::-1],
                y=high + low[::-1],
                fill="toself",
                mode="lines",
                line={"width": 0},
                fillcolor=translucent(colour(mode), 0.18),
                hoverinfo="skip",
                showlegend=False,
                legendgroup=mode,
            )
        figure.add_scatter(
            x=batches,
            y=[scale * v.value for v in values],
            mode="lines+markers",
            name=findings.label(mode),
            legendgroup=mode,
            line={"color": colour(mode), "width": 2.5},
            marker={"size": 8},
            hovertemplate=f"{findings.label(mode)}, batch %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
        )
    figure.update_yaxes(**log_axis(ends))


def latency(findings: Findings) -> Plot | None:
    """Latency against batch size; nothing for a single one, which the tables show."""
    if len(findings.main) < 2:
        return None
    figure = base("batch size (prompts per request)", "latency per request, ms")
    _lines(findings, figure, lambda summary: summary.latency, 1e3, "ms")
    figure.update_xaxes(**batch_axis(findings))
    return Plot("latency", figure)


def throughput(findings: Findings) -> Plot | None:
    """Tokens per second against batch size; nothing for a single one."""
    if len(findings.main) < 2:
        return None
    figure = base("batch size (prompts per request)", "tokens per second")
    _lines(findings, figure, lambda summary: summary.tokens_per_second, 1.0, "tokens/s")
    figure.update_xaxes(**batch_axis(findings))
    return Plot("throughput", figure)


def speedups(findings: Findings) -> Plot | None:
    """Speed-up against the baseline, with intervals and how far the baseline differs from itself."""
    if not any(s.comparison for s in findings.summaries):
        return None
    figure = base("batch size", f"speed-up against {BASELINE}, ×")
    places = {verdict.batch_size: place for place, verdict in enumerate(findings.main)}
    for verdict in findings.main:
        place = places[verdict.batch_size]
        noise = verdict.noise
        if noise and math.isfinite(noise.high):
            figure.add_shape(
                type="rect",
                x0=place - 0.45,
                x1=place + 0.45,
                y0=noise.low,
                y1=noise.high,
                line={"width": 0},
                fillcolor=translucent(colour(BASELINE), 0.28),
                layer="below",
            )
    figure.add_hline(y=1, line={"width": 1.5, "color": colour(BASELINE), "dash": "dot"})
    modes = [mode for mode in by_mode(findings) if mode != BASELINE]
    for number, mode in enumerate(modes):
        shown = [s for s in by_mode(findings)[mode] if s.comparison]
        offset = (number - (len(modes) - 1) / 2) * 0.8 / max(1, len(modes))
        ratios = [s.comparison.speedup for s in shown if s.comparison]
        figure.add_scatter(
            x=[places[s.cell.batch_size] + offset for s in shown],
            y=[r.value for r in ratios],
            name=findings.label(mode),
            mode="markers",
            marker={"size": 11, "color": colour(mode)},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [r.high - r.value for r in ratios],
                "arrayminus": [r.value - r.low for r in ratios],
                "thickness": 2,
                "width": 5,
            },
            customdata=[[r.low, r.high] for r in ratios],
            hovertemplate=findings.label(mode)
            + ": %{y:.3g}× (%{customdata[0]:.3g}–%{customdata[1]:.3g})<extra></extra>",
        )
    figure.update_xaxes(
        tickvals=list(places.values()),
        ticktext=[f"batch {size}" for size in places],
        showgrid=False,
        range=[-0.5, len(places) - 0.5],
        title=None,
    )
    figure.update_yaxes(rangemode="tozero")
    return Plot("speedup", figure)


def trade_off(findings: Findings) -> Plot | None:
    """Latency against throughput along the batch sizes."""
    if len(findings.main) < 2:
        return None
    figure = base("throughput, tokens per second", "latency per request, ms")
    modes = by_mode(findings)
    for mode, summaries in modes.items():
        name = findings.label(mode)
        labelled = mode in (next(iter(modes)), list(modes)[-1])
        figure.add_scatter(
            x=[s.tokens_per_second.value for s in summaries],
            y=[1e3 * s.latency.value for s in summaries],
            text=[f"b={s.cell.batch_size}" for s in summaries],
            name=name,
            mode="lines+markers+text" if labelled else "lines+markers",
            textposition="top center" if mode == BASELINE else "bottom center",
            textfont={"size": 10},
            marker={"size": 8},
            line={"color": colour(mode), "width": 2.5},
            hovertemplate=f"{name}, %{{text}}: %{{x:.4g}} tokens/s at %{{y:.4g}} ms<extra></extra>",
        )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    return Plot("trade-off", figure)


Segment = tuple[str, str, str, Callable[[Summary], float | None]]
"""Name, colour, pattern, and its mean seconds per request."""

_HATCH = {"prefill": "/", "decode": ""}
"""Prefill is hatched, decode is plain: the same part has one colour in both."""


def _segments(device: str) -> list[Segment]:
    """The parts of a bar in the order in which they are stacked; they sum to the server's total."""
    beside = "sync_wait" if device == "cuda" else "kernel"
    found: list[Segment] = [("queue", PART_COLOURS["queue"], "", lambda s: s.parts["queue"])]
    for place, phase in enumerate(PHASES):
        for part in ("dispatch", beside):
            name = part.replace("_", " ")
            found.append((f"{phase} {name}", PART_COLOURS[name], _HATCH[phase], _of_phase(place, part)))
    return [*found, ("other", PART_COLOURS["other"], "", lambda s: s.parts["other"])]


def _of_phase(place: int, part: str) -> Callable[[Summary], float | None]:
    return lambda summary: getattr(summary.phases[place], f"{part}_seconds")


def parts(findings: Findings) -> Plot | None:
    """The parts of a request's time, prefill's and decode's apart, stacked, per mode and batch size."""
    if not findings.main:
        return None
    count = len(findings.main)
    titles = [f"batch {verdict.batch_size}" for verdict in findings.main]
    figure = make_subplots(
        rows=1, cols=count, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03
    )
    figure.update_layout(base("", "", height=140 + 44 * len(findings.main[0].modes)).layout)
    for segment in _segments(findings.results.device):
        if any(segment[3](s) is not None for verdict in findings.main for s in verdict.modes):
            for column, verdict in enumerate(findings.main, start=1):
                _add_bars(findings, figure, column, verdict, segment)
    figure.update_xaxes(title={"text": "ms"}, nticks=5, rangemode="tozero")
    figure.update_yaxes(title=None, automargin=True, showgrid=False)
    figure.update_layout(
        barmode="stack", bargap=0.35, legend={"y": 1.14, "traceorder": "normal"}, margin={"t": 84}
    )
    return Plot("parts", figure, {"least_width": str(150 + 150 * count)})


def _add_bars(findings: Findings, figure: Any, column: int, verdict: Verdict, segment: Segment) -> None:  # noqa: ANN401 - plotly is untyped
    name, tone, pattern, value = segment
    modes = verdict.modes[::-1]
    seconds = [value(summary) for summary in modes]
    figure.add_bar(
        y=[findings.label(s.cell.mode) for s in modes],
        x=[None if part is None else 1e3 * part for part in seconds],
        name=name,
        orientation="h",
        row=1,
        col=column,
        marker={
            "color": tone,
            "line": {"width": 0},
            "pattern": {"shape": pattern, "size": 6, "solidity": 0.35, "fgcolor": "rgba(255,255,255,.75)"},
        },
        legendgroup=name,
        showlegend=column == 1,
        hovertemplate=f"%{{y}}, batch {verdict.batch_size}: {name} %{{x:.4g}} ms<extra></extra>",
    )


MOST_POINTS = 20_000
"""Of more requests only one in several is drawn: neither browser nor reader takes in a million points."""


def timeline(findings: Findings) -> Plot | None:
    """Latencies of requests in the order of measuring, at most MOST_POINTS of them, warm-up shaded.

    Gaps between the parts of a resumed sweep are left out.
    """
    shown = ("start", "stage", "round", "part", "batch_size", "mode", "cell", "latency_seconds")
    opened = pl.col("cell").cast(pl.String).is_in(findings.results.open_loop_names)
    closed = findings.results.rows.lazy().filter(
        pl.col("ok") & ~opened & pl.col("stage").is_in(["warmup", "measure"])
    )
    rows = closed.select(shown).sort("start").collect()
    if rows.is_empty():
        return None
    # The gap before a part lies between its first request and the one before that.
    gap = pl.when(pl.col("part") != pl.col("part").shift(1)).then(pl.col("start").diff()).otherwise(0.0)
    gaps = gap.fill_null(0.0).cum_sum()
    rows = rows.with_columns((pl.col("start") - pl.col("start").first() - gaps).alias("at"))
    figure = base("seconds since the first request", "latency, ms")
    warm = rows.filter(pl.col("stage") == "warmup")
    for (_,), of_part in warm.group_by("part", maintain_order=True):
        figure.add_vrect(
            x0=of_part["at"].min(),
            x1=of_part["at"].max(),
            line={"width": 0},
            layer="below",
            fillcolor=translucent("#8A94A6", 0.2),
            annotation={"text": "warm-up", "font": {"size": 11}},
            annotation_position="top left",
        )
    _shade_marked(figure, rows, findings)
    sizes = sorted(rows["batch_size"].unique().to_list())
    every = -(-rows.height // MOST_POINTS)
    requests = rows.height
    rows = rows.gather_every(every)
    for mode in findings.results.run.plan.modes:
        mine = rows.filter(pl.col("mode") == mode)
        figure.add_scatter(
            x=mine["at"].to_list(),
            y=(1e3 * mine["latency_seconds"]).to_list(),
            mode="markers",
            name=findings.label(mode),
            marker={
                "color": colour(mode),
                "size": 5,
                "opacity": 0.75,
                "symbol": [SYMBOLS[sizes.index(size) % len(SYMBOLS)] for size in mine["batch_size"]],
            },
            text=mine["cell"].to_list(),
            hovertemplate="%{text}<br>%{y:.4g} ms at %{x:.1f} s<extra></extra>",
        )
    figure.update_yaxes(**log_axis((1e3 * rows["latency_seconds"]).to_list()))
    shapes = ", ".join(f"{SYMBOLS[n % len(SYMBOLS)]} = batch {size}" for n, size in enumerate(sizes))
    which = (
        "Every closed-loop request" if every == 1 else f"One in {every} of {requests:,} closed-loop requests"
    )
    return Plot("timeline", figure, {"shapes": shapes, "which": which})


def _shade_marked(figure: go.Figure, rows: pl.DataFrame, findings: Findings) -> None:
    """Rounds in which the machine was not itself."""
    for marked in marked_rounds(findings.results.run.machine_by_round):
        mine = rows.filter((pl.col("stage") == "measure") & (pl.col("round") == marked.round))
        if not mine.is_empty():
            figure.add_vrect(
                x0=mine["at"].min(),
                x1=(mine["at"] + mine["latency_seconds"]).max(),
                line={"width": 0},
                layer="below",
                fillcolor=translucent("#E9A23B", 0.18),
                annotation={"text": f"round {marked.round} marked", "font": {"size": 10}},
                annotation_position="bottom left",
            )


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


def _ends(decode: PhaseMeans) -> str:
    return f"<span style='font-size:10px'>{share_span(decode.interval)}</span>"


def _colour_of(index: float | None) -> str:
    if index is None:
        return "rgba(0,0,0,0)"
    (colour,) = sample_colorscale(_SCALE, [index])
    return str(colour)
