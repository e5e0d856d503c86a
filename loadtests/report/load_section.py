"""The report's section on load: knees and every rate, as tables and a chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

from loadtests.report.findings import Findings
from loadtests.report.formatting import colour, listed, significant, span
from loadtests.report.load import QUANTILES, SECONDS, Ladder, LoadCell, LoadFindings, ModeKnee, ladder_of
from loadtests.report.page import Plot, Section, Table, Text
from loadtests.report.plots import LOG_AXIS, SYMBOLS, base, line
from loadtests.report.summaries import Summary
from loadtests.report.wording import pair
from service.statistics.intervals import SERVED_SHARE, SETTLING_SHARE, Interval, least_requests


def load_section(findings: LoadFindings) -> Section | None:
    """None without an open loop."""
    return Section("Under load", _READING, [*load_tables(findings)]) if findings.knees else None


_READING = (
    f"A rate counts as served where answers leave at {100 * SERVED_SHARE:.4g} % of the rate offered or more. "
    "Rates and latencies count from the instants at which requests were due. The first "
    f"{100 * SETTLING_SHARE:.0f} % of a block's requests fill the queue and are not judged; a quantile needs "
    f"{listed([f'{least_requests(share)} (p{100 * share:.0f})' for share in QUANTILES])} requests. Of a "
    "block that was cut, because its queue only grew, no request has a latency (a "
    "dash). The effective batch is the mean number of sequences in the steps of a request."
)


def load_tables(findings: LoadFindings) -> Iterator[Table]:
    """Per conditions the knees of all modes, then every rate, then its latencies."""
    heads = ("mode", "requests/s before it saturates (95 %)", "rounds", "rates, requests/s")
    for ladder, knees in findings.knees.items():
        rates = [cell for one in knees for cell in one.cells]
        yield Table(conditions(ladder), heads, [_knee(one) for one in knees])
        yield Table("", _RATES, [[*_offered(one), *_served(one)] for one in rates])
        yield Table("", _LATENCIES, [[*_offered(one), *_latencies(one)] for one in rates])


def conditions(ladder: Ladder) -> str:
    """'Batch 1, short prompts, 32 new tokens, Poisson arrivals'."""
    batch, prompts, tokens, arrivals = ladder
    kind = "Poisson" if arrivals == "poisson" else arrivals
    return f"Batch {batch}, {prompts} prompts, {tokens} new tokens, {kind} arrivals"


def _knee(one: ModeKnee) -> list[Text]:
    return [
        Text(one.mode, colour=colour(one.mode)),
        Text(*pair(one.estimate)),
        Text(str(one.rounds)),
        Text(", ".join(f"{cell.rate:.4g}" for cell in one.cells)),
    ]


_RATES = (
    "mode", "offered/s", "served/s", "effective batch", "sent", "rejected", "cut", "queue, ms",
)  # fmt: skip

_KINDS = {"e2e": "latency", "ttft": "first token", "tpot": "per further token"}

_LATENCIES = (
    "mode", "offered/s", *(f"{_KINDS[kind]} p{100 * q:.0f}, ms" for kind in SECONDS for q in QUANTILES)
)  # fmt: skip


def _offered(one: LoadCell) -> list[Text]:
    share = None if one.cell.load is None else f"{100 * one.cell.load:.4g} % of capacity"
    return [Text(one.cell.mode, colour=colour(one.cell.mode)), Text(f"{one.rate:.4g}", share or "")]


def _served(one: LoadCell) -> list[Text]:
    return [
        value(one.served_rate),
        value(one.effective_batch),
        Text(str(one.sent)),
        Text(str(one.rejected)),
        Text(f"{one.cut} of {len(one.blocks)}"),
        value(one.queue_wait, 1e3),
    ]


def _latencies(one: LoadCell) -> list[Text]:
    return [value(one.quantiles[kind][share], 1e3) for kind in SECONDS for share in QUANTILES]


def value(interval: Interval | None, scale: float = 1.0) -> Text:
    """A value that is not negative, and its interval; a dash where it is not known."""
    if interval is None:
        return Text("–")
    known = replace(interval, low=max(0.0, interval.low))
    return Text(significant(known.value * scale), span(known, scale))


def saturation(findings: Findings) -> Plot | None:
    """Open loop: latency from the intended start against the arrival rate."""
    rates = findings.results.run.client.rates
    opened = sorted((s for s in findings.summaries if s.cell.name in rates), key=lambda s: rates[s.cell.name])
    if not opened:
        return None
    figure = base("arrivals per second", "latency from the intended start, ms")
    ladders: dict[tuple[Ladder, str], list[Summary]] = {}
    for one in opened:
        ladders.setdefault((ladder_of(one.cell), one.cell.mode), []).append(one)
    symbols = dict(zip(dict.fromkeys(ladder for ladder, _ in ladders), cycle(SYMBOLS), strict=False))
    for (ladder, mode), own in ladders.items():
        for name, dash, width, values in (
            (f"{mode} b={ladder[0]}", "solid", 2.5, [s.latency.value for s in own]),
            ("95th percentile", "dot", 1.5, [s.latency_p95_seconds for s in own]),
        ):
            line(
                figure,
                mode,
                name,
                [rates[s.cell.name] for s in own],
                [1e3 * value for value in values],
                legendgroup=f"{mode} {ladder}",
                showlegend=dash == "solid",
                marker={"symbol": symbols[ladder], "size": 7},
                line={"color": colour(mode), "width": width, "dash": dash},
                text=[s.cell.name for s in own],
                hovertemplate="%{text}: %{x:.3g}/s, %{y:.4g} ms<extra></extra>",
            )
    figure.update_xaxes(rangemode="tozero")
    figure.update_yaxes(**LOG_AXIS)
    caption = (
        "Open loop: requests arrive by a schedule, whether or not earlier ones have ended. Latency counts "
        "from the time each was due, so that no stall is hidden. Solid is the median, dotted the 95th "
        "percentile."
    )
    return Plot("saturation", "Latency under open-loop load", caption, figure)
