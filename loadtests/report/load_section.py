"""The report's section on load: knees, every rate, and the ladder of concurrencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from loadtests.report.formatting import colour, listed, milliseconds, significant, span
from loadtests.report.load import QUANTILES, SECONDS, LoadCell, LoadFindings, LoadGroup, ModeKnee
from loadtests.report.page import Section
from loadtests.report.summaries import Summary
from loadtests.report.tables import Table, Text, lines
from loadtests.report.wording import pair
from service.statistics.intervals import SETTLING_SHARE, Interval, least_requests

Conditions = tuple[int, str, int]
"""Batch size, prompt set, new tokens."""

Label = Callable[[str], str]
"""From a mode to the name under which the report shows it."""


def load_section(findings: LoadFindings, summaries: Sequence[Summary], label: Label) -> Section | None:
    """None where there is neither open loop nor several concurrencies."""
    tables = [*load_tables(findings, label), *concurrency_tables(summaries, label)]
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


def load_tables(findings: LoadFindings, label: Label) -> Iterator[Table]:
    """Per conditions the knees of all modes, then every rate, then its latencies."""
    for group in findings.groups:
        rates = [cell for one in group.knees for cell in one.cells]
        yield _knees(group, findings, label)
        yield Table("", _RATES, [[*_offered(one, label), *_served(one)] for one in rates])
        yield Table("", _LATENCIES, [[*_offered(one, label), *_latencies(one)] for one in rates])


def conditions(group: LoadGroup) -> str:
    """'Batch 1, short prompts, 32 new tokens, Poisson arrivals'."""
    batch, prompts, tokens, arrivals = group.ladder
    kind = "Poisson" if arrivals == "poisson" else arrivals
    return f"Batch {batch}, {prompts} prompts, {tokens} new tokens, {kind} arrivals"


def _knees(group: LoadGroup, findings: LoadFindings, label: Label) -> Table:
    heads = (
        "mode", f"requests/s {findings.criterion.within} (95 %)", f"against {label(group.reference)} (95 %)",
        "rounds", "rates, requests/s",
    )  # fmt: skip
    rows = [_knee(one, group, label) for one in group.knees]
    return Table(conditions(group), heads, rows)


def _knee(one: ModeKnee, group: LoadGroup, label: Label) -> list[Text]:
    ratio, ratio_span = pair(group.ratio(one.mode), "×")
    caution = None
    if one.too_short is not None:
        caution = (
            f"reads too high: blocks of {one.cells[0].cell.requests} requests are too short for this "
            f"objective, which a queue that starts empty reaches after about {one.too_short}"
        )
    return [
        Text(label(one.mode), colour=colour(one.mode)),
        Text(*pair(one.estimate), under=lines(caution)),
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


def _offered(one: LoadCell, label: Label) -> list[Text]:
    share = None if one.cell.load is None else f"{100 * one.cell.load:.4g} % of capacity"
    return [Text(label(one.cell.mode), colour=colour(one.cell.mode)), Text(f"{one.rate:.4g}", share or "")]


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


def concurrency_tables(summaries: Sequence[Summary], label: Label) -> Iterator[Table]:
    """One table per conditions, a row per mode and concurrency."""
    heads = ("mode", "concurrency", "requests/s", "tokens/s", "latency", "95th percentile")
    for (batch, prompts, tokens), modes in concurrency_ladders(summaries).items():
        title = f"Concurrency: Batch {batch}, {prompts} prompts, {tokens} new tokens"
        yield Table(title, heads, [_concurrency(one, label) for own in modes.values() for one in own])


def _concurrency(summary: Summary, label: Label) -> list[Text]:
    requests = requests_per_second(summary)
    scale = requests / summary.tokens_per_second.value
    return [
        Text(label(summary.cell.mode), colour=colour(summary.cell.mode)),
        Text(str(summary.cell.concurrency)),
        Text(significant(requests), span(summary.tokens_per_second, scale)),
        Text(significant(summary.tokens_per_second.value)),
        Text(milliseconds(summary.latency.value), span(summary.latency, 1e3)),
        Text(milliseconds(summary.latency_p95_seconds)),
    ]
