"""The report's charts of load: goodput and latency against arrivals, and the ladder of concurrencies."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from loadtests.plan.cells import Cell
from loadtests.report.findings import Findings
from loadtests.report.formatting import colour
from loadtests.report.load import LoadGroup, ModeKnee
from loadtests.report.load_section import concurrency_ladders, requests_per_second
from loadtests.report.page import Plot
from loadtests.report.plots import SYMBOLS, base, line, log_axis, whiskers
from loadtests.report.summaries import Summary
from service.statistics.intervals import Interval


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
    answers, past = (
        ("answers in time", "falls, because the queue takes the time that a request has")
        if objective
        else ("answers", "stays flat at what the mode can do")
    )
    caption = (
        "Below the knee all that arrives is served: a line follows the dotted diagonal. Past it the line "
        f"{past}. Diamonds are the knees with their 95 % intervals."
    )
    return Plot("goodput", f"The knee: {answers} against arrivals", caption, figure)


def _add_goodput(figure: go.Figure, one: ModeKnee, name: str, symbol: str) -> None:
    x, y = [cell.rate for cell in one.cells], [(cell.goodput or cell.served_rate).value for cell in one.cells]
    hover = f"{name}: %{{y:.4g}} of %{{x:.4g}} per second<extra></extra>"
    line(figure, one.mode, name, x, y, marker={"symbol": symbol, "size": 7}, hovertemplate=hover)
    estimate = one.estimate
    if estimate is None or not estimate.value.known or not estimate.low or math.isinf(estimate.high):
        return
    knee = estimate.value.low
    figure.add_scatter(
        x=[knee],
        y=[knee],
        error_x=whiskers([Interval(knee, estimate.low, estimate.high, 0)]),
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
    ladders: dict[tuple[str, tuple[Any, ...]], list[Summary]] = {}
    for one in sorted(opened, key=lambda s: rates[s.cell.name]):
        ladders.setdefault((one.cell.mode, _conditions(one.cell)), []).append(one)
    conditions = list(dict.fromkeys(_conditions(one.cell) for one in opened))
    for (mode, own), mine in ladders.items():
        symbol = SYMBOLS[conditions.index(own) % len(SYMBOLS)]
        for name, dash, width, values in (
            (f"{findings.label(mode)} b={own[0]}", "solid", 2.5, [s.latency.value for s in mine]),
            ("95th percentile", "dot", 1.5, [s.latency_p95_seconds for s in mine]),
        ):
            line(
                figure,
                mode,
                name,
                [rates[s.cell.name] for s in mine],
                [1e3 * value for value in values],
                legendgroup=f"{mode} {own}",
                showlegend=dash == "solid",
                marker={"symbol": symbol, "size": 7},
                line={"color": colour(mode), "width": width, "dash": dash},
                text=[s.cell.name for s in mine],
                hovertemplate="%{text}: %{x:.3g}/s, %{y:.4g} ms<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    ends = [1e3 * value for s in opened for value in (s.latency.value, s.latency_p95_seconds)]
    figure.update_yaxes(**log_axis(ends))
    caption = (
        "Open loop: requests arrive by a schedule, whether or not earlier ones have ended. Latency counts "
        "from the time each was due, so that no stall is hidden. Solid is the median, dotted the 95th "
        "percentile."
    )
    return Plot("saturation", "Latency under open-loop load", caption, figure)


def _conditions(cell: Cell) -> tuple[int, str, int, str]:
    return (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.arrivals)


def concurrency(findings: Findings) -> Plot | None:
    """Closed loop: latency against answers per second, along the concurrencies."""
    ladders = concurrency_ladders(findings.summaries)
    if not ladders:
        return None
    figure = base("answers per second", "latency per request, ms")
    for (batch, prompts, tokens), modes in ladders.items():
        for number, (mode, own) in enumerate(modes.items()):
            name = findings.label(mode) + (f" b={batch} {prompts} n={tokens}" if len(ladders) > 1 else "")
            line(
                figure,
                mode,
                name,
                [requests_per_second(s) for s in own],
                [1e3 * s.latency.value for s in own],
                text=[f"c={s.cell.concurrency}" for s in own],
                mode="lines+markers+text" if number == 0 else "lines+markers",
                textposition="top center",
                textfont={"size": 10},
                hovertemplate=f"{name}, %{{text}}: %{{x:.4g}}/s at %{{y:.4g}} ms<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(rangemode="tozero")
    caption = (
        "Closed loop: each point keeps c requests in flight. Once the engine is busy all the time, further "
        "requests in flight add latency and no throughput: the line turns upwards."
    )
    return Plot("concurrency", "Latency against throughput, along the concurrencies", caption, figure)
