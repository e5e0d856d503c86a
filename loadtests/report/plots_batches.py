"""The report's plots of load: the knee of latency against throughput, and saturation."""

from __future__ import annotations

from loadtests.plan.cells import BASELINE
from loadtests.report.plotting import Plot, base, by_mode, colour, log_axis
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings


def knee(findings: Findings) -> Plot | None:
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
    return Plot("knee", figure)


def saturation(findings: Findings) -> Plot | None:
    """Open loop: latency from the intended start against the arrival rate."""
    opened = [s for s in findings.summaries if s.cell.load is not None]
    if not opened:
        return None
    rates = findings.results.run.client.rates
    figure = base("arrivals per second", "latency from the intended start, ms")
    smallest = min(s.cell.batch_size for s in opened)
    for (mode, batch), mine in _grouped(opened).items():
        symbol = "circle" if batch == smallest else "square"
        for name, dash, values in (
            (f"{findings.label(mode)} b={batch}", "solid", [1e3 * s.latency.value for s in mine]),
            ("95th percentile", "dot", [1e3 * s.latency_p95_seconds for s in mine]),
        ):
            figure.add_scatter(
                x=[rates.get(s.cell.name) for s in mine],
                y=values,
                name=name,
                legendgroup=f"{mode} {batch}",
                mode="lines+markers",
                showlegend=dash == "solid",
                marker={"symbol": symbol, "size": 7},
                line={"color": colour(mode), "width": 2.5 if dash == "solid" else 1.5, "dash": dash},
                text=[f"{s.cell.load:.0%} of capacity" for s in mine],
                hovertemplate=f"{mode}, {name}: %{{x:.3g}}/s, %{{y:.4g}} ms, %{{text}}<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    ends = [1e3 * value for s in opened for value in (s.latency.value, s.latency_p95_seconds)]
    figure.update_yaxes(**log_axis(ends))
    return Plot("saturation", figure)


def _grouped(summaries: list[Summary]) -> dict[tuple[str, int], list[Summary]]:
    groups: dict[tuple[str, int], list[Summary]] = {}
    for summary in sorted(summaries, key=lambda s: s.cell.load or 0.0):
        groups.setdefault((summary.cell.mode, summary.cell.batch_size), []).append(summary)
    return groups
