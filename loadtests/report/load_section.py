"""The report's section on load: knees and every rate, as tables and a chart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

from loadtests.report.findings import Findings
from loadtests.report.formatting import colour, listed, significant, span
from loadtests.report.load import (
    QUANTILES,
    SECONDS,
    Ladder,
    LoadCell,
    LoadFindings,
    LoadGroup,
    ModeKnee,
    ladder_of,
)
from loadtests.report.page import Plot, Section, Table, Text
from loadtests.report.plots import LOG_AXIS, SYMBOLS, base, line
from loadtests.report.summaries import Summary
from loadtests.report.wording import pair
from service.statistics.intervals import SETTLING_SHARE, Interval, least_requests


def load_section(findings: LoadFindings) -> Section | None:
    """None without an open loop."""
    note = f"{findings.criterion.meaning} {_READING}"
    return Section("Under load", note, [*load_tables(findings)]) if findings.groups else None


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
    return [
        *(value(found) for found in (one.served_rate, one.goodput)),
        value(one.attainment, 100.0),
        value(one.effective_batch),
        Text(str(one.sent)),
        Text(str(one.rejected)),
        Text(f"{one.cut} of {len(one.blocks)}"),
        *(value(found, 1e3) for found in (one.queue_wait, one.replayed_wait, one.steady_wait)),
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
