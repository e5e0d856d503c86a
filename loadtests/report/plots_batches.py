"""The report's plot of latency against throughput along the batch sizes."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE
from loadtests.report.plotting import Plot, base, by_mode, colour
from loadtests.report.verdict import Findings


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
