"""The report's charts. Backgrounds, text and grid are set by the page for its light or dark colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import plotly.graph_objects as go
import polars as pl
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from dashboards.theme import PART_COLOURS
from loadtests.plan.cells import BASELINE
from loadtests.report.findings import Findings
from loadtests.report.formatting import capital, colour, share_span
from loadtests.report.page import Plot
from loadtests.report.summaries import Summary, Verdict
from service.records import Phase
from service.statistics.intervals import Interval
from service.workloads import Workload

LOG_AXIS = {"type": "log", "dtick": "D2", "tickformat": "~g"}
"""Ticks at 1, 2 and 5 times the powers of ten."""

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star")


def translucent(hexadecimal: str, alpha: float) -> str:
    red, green, blue = (int(hexadecimal[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def base(x: str, y: str, height: int = 380) -> go.Figure:
    figure = go.Figure()
    figure.update_layout(
        template=None,
        height=height,
        margin={"l": 64, "r": 16, "t": 16, "b": 56},
        hovermode="closest",
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "xanchor": "left"},
        xaxis={"title": {"text": x}, "automargin": True, "zeroline": False},
        yaxis={"title": {"text": y}, "automargin": True, "zeroline": False},
    )
    return figure


def line(figure: go.Figure, of: str, name: str, x: Sequence[float], y: Sequence[float], **more: Any) -> None:  # noqa: ANN401 - plotly is untyped
    """A line with markers in the colour of the mode `of`."""
    figure.add_scatter(
        x=x,
        y=y,
        name=name,
        **{
            "mode": "lines+markers",
            "legendgroup": name,
            "marker": {"size": 8},
            "line": {"color": colour(of), "width": 2.5},
            **more,
        },
    )


def _by_mode(findings: Findings) -> dict[str, list[Summary]]:
    modes: dict[str, list[Summary]] = {}
    for verdict in findings.main:
        for summary in verdict.modes:
            modes.setdefault(summary.cell.mode, []).append(summary)
    return modes


# Against batch size.


def latency(findings: Findings) -> Plot | None:
    axis = f"{findings.words.latency_per}, ms"
    figure = _against_batch(findings, lambda one: one.latency, 1e3, axis, "ms")
    caption = (
        "Lower is better; both axes are logarithmic. Lines are the typical round's median, bands its 95 % "
        "interval. The scatter of rounds is shared by all modes: where bands overlap, the paired speed-up "
        "decides."
    )
    title = f"{capital(findings.words.latency)} against batch size"
    return figure and Plot("latency", title, caption, figure, half=True)


def throughput(findings: Findings) -> Plot | None:
    unit = findings.words.unit
    rate = f"{unit} per second"
    figure = _against_batch(findings, lambda one: one.throughput, 1.0, rate, f"{unit}/s")
    caption = (
        "Higher is better. Where a line still rises steeply, a larger batch costs little. Where it flattens, "
        "kernels are the limit and the modes converge."
    )
    return figure and Plot("throughput", f"{capital(rate)} against batch size", caption, figure, half=True)


def _against_batch(
    findings: Findings, value: Callable[[Summary], Interval], scale: float, axis: str, unit: str
) -> go.Figure | None:
    if len(findings.main) < 2:
        return None
    figure = base(f"batch size ({findings.words.batch})", axis)
    for mode, summaries in _by_mode(findings).items():
        batches = [one.cell.batch_size for one in summaries]
        values = [value(one) for one in summaries]
        low, middle, high = (
            [scale * getattr(one, end) for one in values] for end in ("low", "value", "high")
        )
        if all(one.samples > 1 for one in values):
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
        hover = f"{mode}, batch %{{x}}: %{{y:.4g}} {unit}<extra></extra>"
        line(figure, mode, mode, batches, middle, hovertemplate=hover)
    figure.update_yaxes(**LOG_AXIS)
    sizes = [verdict.batch_size for verdict in findings.main]
    figure.update_xaxes(type="log", tickvals=sizes, ticktext=list(map(str, sizes)), tickangle=0)
    return figure


def speedups(findings: Findings) -> Plot | None:
    """Speed-up against the baseline, with intervals and how far the baseline differs from itself."""
    if not any(s.comparison for s in findings.summaries):
        return None
    figure = base("batch size", f"speed-up against {BASELINE}, ×")
    places = {verdict.batch_size: place for place, verdict in enumerate(findings.main)}
    for place, verdict in enumerate(findings.main):
        if verdict.noise and math.isfinite(verdict.noise.high):
            figure.add_shape(
                type="rect",
                x0=place - 0.45,
                x1=place + 0.45,
                y0=verdict.noise.low,
                y1=verdict.noise.high,
                line={"width": 0},
                fillcolor=translucent(colour(BASELINE), 0.28),
                layer="below",
            )
    figure.add_hline(y=1, line={"width": 1.5, "color": colour(BASELINE), "dash": "dot"})
    modes = {mode: own for mode, own in _by_mode(findings).items() if mode != BASELINE}
    for number, (mode, own) in enumerate(modes.items()):
        found = {s.cell.batch_size: s.comparison.speedup for s in own if s.comparison}
        offset = (number - (len(modes) - 1) / 2) * 0.8 / len(modes)
        figure.add_scatter(
            x=[places[batch] + offset for batch in found],
            y=[ratio.value for ratio in found.values()],
            name=mode,
            mode="markers",
            marker={"size": 11, "color": colour(mode)},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [ratio.high - ratio.value for ratio in found.values()],
                "arrayminus": [ratio.value - ratio.low for ratio in found.values()],
                "thickness": 2,
                "width": 5,
            },
            customdata=[[ratio.low, ratio.high] for ratio in found.values()],
            hovertemplate=mode + ": %{y:.3g}× (%{customdata[0]:.3g}–%{customdata[1]:.3g})<extra></extra>",
        )
    figure.update_xaxes(
        tickvals=list(places.values()),
        ticktext=[f"batch {size}" for size in places],
        showgrid=False,
        range=[-0.5, len(places) - 0.5],
        title=None,
    )
    figure.update_yaxes(rangemode="tozero")
    caption = (
        "Whiskers are t intervals of paired log ratios of round medians. The grey band is how far "
        f"{BASELINE} differs from itself when measured twice; it decides nothing. Two modes are compared by "
        "their own paired interval, which is narrower than the distance of these whiskers suggests."
    )
    return Plot("speedup", f"Speed-up against {BASELINE}", caption, figure)


def trade_off(findings: Findings) -> Plot | None:
    """Latency against throughput, along the batch sizes."""
    if len(findings.main) < 2:
        return None
    words = findings.words
    figure = base(f"{words.unit} per second", f"{words.latency_per}, ms")
    for mode, own in _by_mode(findings).items():
        rates, latencies = [s.throughput.value for s in own], [1e3 * s.latency.value for s in own]
        batches = [f"batch {s.cell.batch_size}" for s in own]
        hover = f"{mode}, %{{text}}: %{{x:.4g}} {words.unit}/s at %{{y:.4g}} ms<extra></extra>"
        line(figure, mode, mode, rates, latencies, text=batches, hovertemplate=hover)
    figure.update_layout(xaxis_rangemode="tozero", yaxis_rangemode="tozero")
    caption = (
        "Each line goes through the batch sizes of one mode; further right and lower is better. At its knee "
        "a line turns upwards: from there on more throughput costs latency in proportion."
    )
    title = f"{capital(words.latency)} against throughput, along the batch sizes"
    return Plot("trade-off", title, caption, figure)


# Where the time goes.

Segment = tuple[str, str, str, Callable[[Summary], float | None]]
"""Name, colour, pattern, and its mean seconds per request."""


def _segments(workload: Workload, device: str) -> Iterator[Segment]:
    """The parts of a bar in the order in which they are stacked; they sum to the server's total."""
    yield "queue", PART_COLOURS["queue"], "", lambda s: s.parts["queue"]
    for phase in workload.phases:
        for part in ("dispatch", "sync_wait" if device == "cuda" else "kernel"):
            name, pattern = part.replace("_", " "), "" if phase == workload.main else "/"
            yield f"{phase} {name}", PART_COLOURS[name], pattern, partial(_seconds, phase, part)
    yield "other", PART_COLOURS["other"], "", lambda s: s.parts["other"]


def _seconds(phase: Phase, part: str, summary: Summary) -> float | None:
    found: float | None = getattr(summary.phase(phase), f"{part}_seconds")
    return found


def parts(findings: Findings) -> Plot | None:
    """The parts of a request's or call's time, by phase, stacked, per mode and batch size."""
    if not findings.main:
        return None
    count, device = len(findings.main), findings.results.device
    titles = [f"batch {verdict.batch_size}" for verdict in findings.main]
    figure = make_subplots(
        rows=1, cols=count, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03
    )
    figure.update_layout(base("", "", height=140 + 44 * len(findings.main[0].modes)).layout)
    for segment in _segments(findings.results.workload, device):
        if any(segment[3](s) is not None for verdict in findings.main for s in verdict.modes):
            for column, verdict in enumerate(findings.main, start=1):
                _add_bars(figure, column, verdict, segment)
    figure.update_xaxes(title={"text": "ms"}, nticks=5, rangemode="tozero")
    figure.update_yaxes(title=None, automargin=True, showgrid=False)
    figure.update_layout(
        barmode="stack", bargap=0.35, legend={"y": 1.14, "traceorder": "normal"}, margin={"t": 84}
    )
    how = (
        "Sync wait is the host blocked on the device: kernels run in parallel with dispatch and are not in "
        "the stack."
        if device == "cuda"
        else "On a CPU dispatch and kernel are estimates by samples, whose intervals are in the tables."
    )
    words = findings.words
    of, apart = f"per {words.timed}, and", ""
    if words.has_tokens:
        of, apart = (
            "per request inside the server; prefill is hatched, decode plain, and",
            ": prefill and decode apart",
        )
    caption = f"Mean milliseconds {of} a bar's parts sum to its total. Each panel has its own scale. {how}"
    title = f"Where a {words.timed}'s time goes{apart}"
    return Plot("parts", title, caption, figure, least_width=150 + 150 * count)


def _add_bars(figure: go.Figure, column: int, verdict: Verdict, segment: Segment) -> None:
    name, tone, pattern, value = segment
    modes = verdict.modes[::-1]
    figure.add_bar(
        y=[s.cell.mode for s in modes],
        x=[None if (seconds := value(summary)) is None else 1e3 * seconds for summary in modes],
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
    "colorbar": {"title": {"text": "kernel share"}, "tickvals": [0, 0.2, 0.5, 1], "thickness": 12},
}
"""Markers of a trace without points, there for the colour bar: on bars plotly.js warns about the text."""

_CELL_WIDTH = 0.97
"""Of one cell of the heat map, in columns."""


def index_map(findings: Findings) -> Plot | None:
    """The main phase's kernel share, with its interval, by mode and batch; nothing where it is not known."""
    verdicts = [verdict for verdict in findings.main if verdict.baseline.main.index is not None]
    if not verdicts:
        return None
    modes = [mode for mode in findings.results.run.plan.modes if mode in _by_mode(findings)][::-1]
    figure = base("", "", height=110 + 52 * len(modes))
    for column, verdict in enumerate(verdicts):
        _add_column(figure, column, verdict)
    figure.add_scatter(x=[None], y=[None], mode="markers", marker=_COLOUR_BAR, hoverinfo="skip")
    figure.update_xaxes(
        title=None,
        showgrid=False,
        side="top",
        range=[-0.5, len(verdicts) - 0.5],
        tickvals=list(range(len(verdicts))),
        ticktext=[f"batch {verdict.batch_size}" for verdict in verdicts],
    )
    figure.update_yaxes(title=None, showgrid=False, categoryorder="array", categoryarray=modes)
    figure.update_layout(margin={"t": 36, "b": 16}, barmode="overlay", bargap=0.1, showlegend=False)
    how = (
        "Below 0.2 launch-bound: the device waits for the host, a mode with less dispatch helps. From 0.5 "
        "kernel-bound: dispatch is no longer the limit."
        if findings.results.device == "cuda"
        else "One over it is the headroom: how many times as fast a step would be without its dispatch."
    )
    caption = f"Kernel time over kernel plus dispatch, with its interval. {how}"
    least_width = 220 + 84 * len(verdicts)
    title = f"Kernel share of {findings.words.main}"
    return Plot("index", title, caption, figure, half=True, least_width=least_width)


def _add_column(figure: go.Figure, column: int, verdict: Verdict) -> None:
    known = [(one.cell.mode, one.main) for one in verdict.modes if one.main.index is not None]
    indices = [phase.index for _, phase in known]
    small = "<b>{:.2f}</b><br><span style='font-size:10px'>{}</span>"
    figure.add_bar(
        y=[mode for mode, _ in known],
        x=[_CELL_WIDTH] * len(known),
        base=column - _CELL_WIDTH / 2,
        orientation="h",
        marker={"color": sample_colorscale(_SCALE, indices), "line": {"width": 0}},
        text=[small.format(phase.index, share_span(phase.interval)) for _, phase in known],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont={"size": 12, "color": "#1b1f24"},
        customdata=indices,
        hovertemplate=f"%{{y}}, batch {verdict.batch_size}: %{{customdata:.3f}}<extra></extra>",
    )


# Over time.

MOST_POINTS = 20_000
"""Of more requests only one in several is drawn: neither browser nor reader takes in a million points."""


def timeline(findings: Findings) -> Plot | None:
    """Latencies of requests in the order of measuring, at most MOST_POINTS of them, warm-up shaded.

    Gaps between the parts of a resumed sweep are left out.
    """
    rows = _in_order(findings)
    if rows.is_empty():
        return None
    words = findings.words
    figure = base("seconds since the first request", f"{words.latency}, ms")
    warm = rows.filter(pl.col("stage") == "warmup")
    for _, of_part in warm.group_by("part", maintain_order=True):
        figure.add_vrect(
            x0=of_part["at"].item(0),
            x1=of_part["at"].item(-1),
            line={"width": 0},
            layer="below",
            fillcolor=translucent("#8A94A6", 0.2),
            annotation={"text": "warm-up", "font": {"size": 11}},
            annotation_position="top left",
        )
    sizes = sorted(rows["batch_size"].unique().to_list())
    every = -(-rows.height // MOST_POINTS)
    shown = rows.gather_every(every)
    for mode in findings.results.run.plan.modes:
        mine = shown.filter(pl.col("mode") == mode)
        symbols = [SYMBOLS[sizes.index(size) % len(SYMBOLS)] for size in mine["batch_size"]]
        figure.add_scatter(
            x=mine["at"].to_list(),
            y=(1e3 * mine["latency_seconds"]).to_list(),
            mode="markers",
            name=mode,
            marker={"color": colour(mode), "size": 5, "opacity": 0.75, "symbol": symbols},
            text=mine["cell"].to_list(),
            hovertemplate="%{text}<br>%{y:.4g} ms at %{x:.1f} s<extra></extra>",
        )
    figure.update_yaxes(**LOG_AXIS)
    shapes = ", ".join(f"{SYMBOLS[n % len(SYMBOLS)]} = batch {size}" for n, size in enumerate(sizes))
    which = (
        "Every closed-loop request"
        if every == 1
        else f"One in {every} of {rows.height:,} closed-loop requests"
    )
    caption = (
        f"{which} in the order of measuring; {shapes}. Levels should be flat: a slope, a step or a burst "
        "comes from the machine, not the mode, and the random order of each round spreads it over all modes."
    )
    return Plot("timeline", f"{capital(words.latency)} over time", caption, figure)


def _in_order(findings: Findings) -> pl.DataFrame:
    """The closed loop's answers by their start; `at` is seconds since the first, without gaps."""
    shown = ("start", "stage", "round", "part", "batch_size", "mode", "cell", "latency_seconds")
    opened = pl.col("cell").cast(pl.String).is_in(findings.results.open_loop_names)
    closed = findings.results.rows.lazy().filter(
        pl.col("ok") & ~opened & pl.col("stage").is_in(["warmup", "measure"])
    )
    rows = closed.select(shown).sort("start").collect()
    # The gap before a part lies between its first request and the one before that.
    gap = pl.when(pl.col("part") != pl.col("part").shift(1)).then(pl.col("start").diff()).otherwise(0.0)
    gaps = gap.fill_null(0.0).cum_sum()
    return rows.with_columns((pl.col("start") - pl.col("start").first() - gaps).alias("at"))
