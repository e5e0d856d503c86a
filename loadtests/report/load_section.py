"""The report's section on load: knees, every rate and the ladder of concurrencies, as tables and charts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import plotly.graph_objects as go

from loadtests.plan.cells import Cell
from loadtests.report.findings import Findings
from loadtests.report.formatting import colour, listed, milliseconds, significant, span
from loadtests.report.load import QUANTILES, SECONDS, LoadCell, LoadFindings, LoadGroup, ModeKnee
from loadtests.report.page import Plot, Section, Table, Text
from loadtests.report.plots import SYMBOLS, base, line, log_axis, whiskers
from loadtests.report.summaries import Summary
from loadtests.report.wording import pair
from service.statistics.intervals import SETTLING_SHARE, Interval, least_requests

Conditions = tuple[int, str, int]
"""Batch size, prompt set, new tokens."""


def load_section(findings: LoadFindings, summaries: Sequence[Summary]) -> Section | None:
    """None where there is neither open loop nor several concurrencies."""
    tables = [*load_tables(findings), *concurrency_tables(summaries)]
    if not tables:
        return None
    note = f"{findings.criterion.meaning} {findings.source} {_READING}" if findings.cells else ""
    return Section("Under load", note, tables)


_READING = (
    "Rates and latencies count from the instants at which requests were due. The first "
    f"{100 * SETTLING_SHARE:.0f} % of a block's requests fill the queue and are not judged; a quantile needs "
    f"{listed([f'{least_requests(share)} (p{100 * share:.0f})' for share in QUANTILES])} requests. Of a "
    "block that was cut, because its queue only grew, no request counts as in time and none has a latency (a "
    "dash). The wait replayed follows from the instants of sending and the times in service alone; steady is "
    "Pollaczek and Khinchine's for Poisson arrivals after an infinite time, and a block, which starts with "
    "an empty queue, waits less. The effective batch is the mean number of sequences in the steps of a "
    "request."
)


def load_tables(findings: LoadFindings) -> Iterator[Table]:
    """Per conditions the knees of all modes, then every rate, then its latencies."""
    for group in findings.groups:
        rates = [cell for one in group.knees for cell in one.cells]
        yield _knees(group, findings)
        yield Table("", _RATES, [[*_offered(one), *_served(one)] for one in rates])
        yield Table("", _LATENCIES, [[*_offered(one), *_latencies(one)] for one in rates])


def conditions(group: LoadGroup) -> str:
    """'Batch 1, short prompts, 32 new tokens, Poisson arrivals'."""
    batch, prompts, tokens, arrivals = group.ladder
    kind = "Poisson" if arrivals == "poisson" else arrivals
    return f"Batch {batch}, {prompts} prompts, {tokens} new tokens, {kind} arrivals"


def _knees(group: LoadGroup, findings: LoadFindings) -> Table:
    heads = (
        "mode", f"requests/s {findings.criterion.within} (95 %)", f"against {group.reference} (95 %)",
        "rounds", "rates, requests/s",
    )  # fmt: skip
    rows = [_knee(one, group) for one in group.knees]
    return Table(conditions(group), heads, rows, " ".join(_cautions(group)))


def _cautions(group: LoadGroup) -> Iterator[str]:
    for one in group.knees:
        if one.too_short is not None:
            yield (
                f"{one.mode}: its knee reads too high, because blocks of {one.cells[0].cell.requests} "
                "requests are too short for this objective: a queue that starts empty reaches it after about "
                f"{one.too_short}."
            )


def _knee(one: ModeKnee, group: LoadGroup) -> list[Text]:
    ratio, ratio_span = pair(group.ratio(one.mode), "×")
    return [
        Text(one.mode, colour=colour(one.mode)),
        Text(*pair(one.estimate)),
        Text(ratio, ratio_span if ratio != "–" else ""),
        Text(str(one.rounds)),
        Text(", ".join(f"{cell.rate:.4g}" for cell in one.cells)),
    ]


_RATES = (
    "mode", "offered/s", "served/s", "in time/s", "in time, %", "effective batch", "sent", "rejected", "cut",
    "queue measured, ms", "replayed", "steady",
)  # fmt: skip

_KINDS = {"e2e": "latency", "ttft": "first token", "tpot": "per further token"}

_LATENCIES = (
    "mode", "offered/s", *(f"{_KINDS[kind]} p{100 * q:.0f}, ms" for kind in SECONDS for q in QUANTILES)
)  # fmt: skip


def _offered(one: LoadCell) -> list[Text]:
    share = None if one.cell.load is None else f"{100 * one.cell.load:.4g} % of capacity"
    return [Text(one.cell.mode, colour=colour(one.cell.mode)), Text(f"{one.rate:.4g}", share or "")]


def _served(one: LoadCell) -> list[Text]:
    waits = one.queue_waits
    return [
        *(value(found) for found in (one.served_rate, one.goodput)),
        value(one.attainment, 100.0),
        value(one.effective_batch),
        Text(str(one.sent)),
        Text(str(one.rejected)),
        Text(f"{one.cut} of {len(one.blocks)}"),
        *(value(found, 1e3) for found in (waits.measured, waits.replayed, waits.steady)),
    ]


def _latencies(one: LoadCell) -> list[Text]:
    return [value(one.quantiles[kind][share], 1e3) for kind in SECONDS for share in QUANTILES]


def value(interval: Interval | None, scale: float = 1.0) -> Text:
    """A value that is not negative, and its interval; a dash where it is not known."""
    if interval is None:
        return Text("–")
    known = replace(interval, low=max(0.0, interval.low))
    return Text(significant(known.value * scale), span(known, scale))


# The ladder of concurrencies.


def concurrency_ladders(summaries: Sequence[Summary]) -> dict[Conditions, dict[str, list[Summary]]]:
    """Closed-loop cells by conditions and mode, by concurrency; only conditions with several of them."""
    found: dict[Conditions, dict[str, list[Summary]]] = {}
    for summary in sorted(summaries, key=lambda one: one.cell.concurrency):
        cell = summary.cell
        if not cell.open_loop and not cell.control:
            own = found.setdefault((cell.batch_size, cell.prompt_set, cell.new_tokens), {})
            own.setdefault(cell.mode, []).append(summary)
    return {
        conditions: modes
        for conditions, modes in sorted(found.items())
        if len({one.cell.concurrency for own in modes.values() for one in own}) > 1
    }


def requests_per_second(summary: Summary) -> float:
    """Answers per second of a closed-loop cell: its tokens per second over the tokens of one request."""
    return summary.tokens_per_second.value / (summary.cell.batch_size * summary.cell.new_tokens)


def concurrency_tables(summaries: Sequence[Summary]) -> Iterator[Table]:
    """One table per conditions, a row per mode and concurrency."""
    heads = ("mode", "concurrency", "requests/s", "tokens/s", "latency", "95th percentile")
    for (batch, prompts, tokens), modes in concurrency_ladders(summaries).items():
        title = f"Concurrency: Batch {batch}, {prompts} prompts, {tokens} new tokens"
        yield Table(title, heads, [_concurrency(one) for own in modes.values() for one in own])


def _concurrency(summary: Summary) -> list[Text]:
    requests = requests_per_second(summary)
    scale = requests / summary.tokens_per_second.value
    return [
        Text(summary.cell.mode, colour=colour(summary.cell.mode)),
        Text(str(summary.cell.concurrency)),
        Text(significant(requests), span(summary.tokens_per_second, scale)),
        Text(significant(summary.tokens_per_second.value)),
        Text(milliseconds(summary.latency.value), span(summary.latency, 1e3)),
        Text(milliseconds(summary.latency_p95_seconds)),
    ]


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
        return mode
    kind = "" if arrivals == "poisson" else f" {arrivals}"
    return f"{mode} b={batch} {prompts} n={tokens}{kind}"


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
            (f"{mode} b={own[0]}", "solid", 2.5, [s.latency.value for s in mine]),
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
