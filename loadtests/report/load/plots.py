"""The report's plots of load: goodput and latency against arrivals, and the ladder of concurrencies."""

from __future__ import annotations

import math
from collections.abc import Iterable

import plotly.graph_objects as go

from loadtests.plan.cells import Cell
from loadtests.report.load.knees import LoadGroup, ModeKnee
from loadtests.report.load.section import concurrency_ladders, requests_per_second
from loadtests.report.plotting import SYMBOLS, Plot, base, colour, log_axis
from loadtests.report.summaries import Summary
from loadtests.report.verdict import Findings


def goodput(findings: Findings) -> Plot | None:
    """Answers per second, in time where there are objectives, against arrivals; knees on the diagonal."""
    groups = findings.load.groups
    if not groups:
        return None
    objective = findings.load.criterion.slo is not None
    figure = base("arrivals per second", f"answers{' in time' if objective else ''} per second")
    most = max(cell.rate for group in groups for one in group.knees for cell in one.cells)
    figure.add_scatter(
        x=[0, most],
        y=[0, most],
        mode="lines",
        name="all served",
        line={"color": "#8A94A6", "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    for number, group in enumerate(groups):
        for one in group.knees:
            _add_goodput(figure, one, _name(findings, group, one.mode), SYMBOLS[number % len(SYMBOLS)])
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    return Plot("goodput", figure, {"objective": "yes" if objective else ""})


def _add_goodput(figure: go.Figure, one: ModeKnee, name: str, symbol: str) -> None:
    values = [cell.goodput or cell.served_rate for cell in one.cells]
    figure.add_scatter(
        x=[cell.rate for cell in one.cells],
        y=[value.value for value in values],
        name=name,
        legendgroup=name,
        mode="lines+markers",
        marker={"symbol": symbol, "size": 7},
        line={"color": colour(one.mode), "width": 2.5},
        hovertemplate=f"{name}: %{{y:.4g}} of %{{x:.4g}} per second<extra></extra>",
    )
    estimate = one.estimate
    if estimate is None or not estimate.value.known or not estimate.low or math.isinf(estimate.high):
        return
    knee = estimate.value.low
    figure.add_scatter(
        x=[knee],
        y=[knee],
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [estimate.high - knee],
            "arrayminus": [knee - estimate.low],
        },
        name=f"knee of {name}",
        legendgroup=name,
        showlegend=False,
        mode="markers",
        marker={"symbol": "diamond", "size": 11, "color": colour(one.mode)},
        hovertemplate=f"knee of {name}: %{{x:.4g}} per second<extra></extra>",
    )


def _name(findings: Findings, group: LoadGroup, mode: str) -> str:
    """With the conditions where there are several."""
    batch, prompts, tokens, arrivals = group.ladder
    if len(findings.load.groups) == 1:
        return findings.label(mode)
    kind = "" if arrivals == "poisson" else f" {arrivals}"
    return f"{findings.label(mode)} b={batch} {prompts} n={tokens}{kind}"


def saturation(findings: Findings) -> Plot | None:
    """Open loop: latency from the intended start against the arrival rate."""
    rates = findings.results.run.client.rates
    opened = [s for s in findings.summaries if s.cell.name in rates]
    if not opened:
        return None
    figure = base("arrivals per second", "latency from the intended start, ms")
    conditions = list(dict.fromkeys(_conditions(s.cell) for s in opened))
    for (mode, own), mine in _by_mode(opened, rates).items():
        symbol = SYMBOLS[conditions.index(own) % len(SYMBOLS)]
        name = f"{findings.label(mode)} b={mine[0].cell.batch_size}"
        for dash, values in (
            ("solid", [1e3 * s.latency.value for s in mine]),
            ("dot", [1e3 * s.latency_p95_seconds for s in mine]),
        ):
            figure.add_scatter(
                x=[rates[s.cell.name] for s in mine],
                y=values,
                name=name if dash == "solid" else "95th percentile",
                legendgroup=f"{mode} {own}",
                mode="lines+markers",
                showlegend=dash == "solid",
                marker={"symbol": symbol, "size": 7},
                line={"color": colour(mode), "width": 2.5 if dash == "solid" else 1.5, "dash": dash},
                text=[s.cell.name for s in mine],
                hovertemplate="%{text}: %{x:.3g}/s, %{y:.4g} ms<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    ends = [1e3 * value for s in opened for value in (s.latency.value, s.latency_p95_seconds)]
    figure.update_yaxes(**log_axis(ends))
    return Plot("saturation", figure)


Conditions = tuple[int, str, int, str]
"""Batch size, prompt set, new tokens, arrivals."""


def _conditions(cell: Cell) -> Conditions:
    return (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)


def _by_mode(
    summaries: Iterable[Summary], rates: dict[str, float]
) -> dict[tuple[str, Conditions], list[Summary]]:
    groups: dict[tuple[str, Conditions], list[Summary]] = {}
    for summary in sorted(summaries, key=lambda s: rates[s.cell.name]):
        groups.setdefault((summary.cell.mode, _conditions(summary.cell)), []).append(summary)
    return groups


def concurrency(findings: Findings) -> Plot | None:
    """Closed loop: latency against answers per second, along the concurrencies."""
    ladders = concurrency_ladders(findings.summaries)
    if not ladders:
        return None
    figure = base("answers per second", "latency per request, ms")
    for (batch, prompts, tokens), modes in ladders.items():
        for number, (mode, own) in enumerate(modes.items()):
            name = findings.label(mode)
            if len(ladders) > 1:
                name += f" b={batch} {prompts} n={tokens}"
            figure.add_scatter(
                x=[requests_per_second(s) for s in own],
                y=[1e3 * s.latency.value for s in own],
                text=[f"c={s.cell.concurrency}" for s in own],
                name=name,
                mode="lines+markers+text" if number == 0 else "lines+markers",
                textposition="top center",
                textfont={"size": 10},
                marker={"size": 8},
                line={"color": colour(mode), "width": 2.5},
                hovertemplate=f"{name}, %{{text}}: %{{x:.4g}}/s at %{{y:.4g}} ms<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    return Plot("concurrency", figure)
