"""The report's plots of modes against each other: latency, throughput, and speed-up."""

from __future__ import annotations

import math
from collections.abc import Callable

import plotly.graph_objects as go

from loadtests.plan.cells import BASELINE
from loadtests.report.plotting import Plot, base, batch_axis, by_mode, colour, log_axis, translucent
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings
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
