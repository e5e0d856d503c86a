"""The report's section on load as plain values: sentences, knees, rates, and the ladder of concurrencies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from loadtests.report import formatting
from loadtests.report.load import sentences
from loadtests.report.load.knees import QUANTILES, LoadCell, LoadFindings, LoadGroup, ModeKnee, QueueWaits
from loadtests.report.load.visits import SECONDS
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary
from service.statistics.intervals import SETTLING_SHARE, Interval, least_requests

Conditions = tuple[int, str, int]
"""Batch size, prompt set, new tokens."""


def concurrency_ladders(summaries: Sequence[Summary]) -> dict[Conditions, dict[str, list[Summary]]]:
    """Closed-loop cells by conditions and mode, by concurrency; only conditions with several of them."""
    found: dict[Conditions, dict[str, list[Summary]]] = {}
    for summary in summaries:
        cell = summary.cell
        if not cell.open_loop and not cell.control:
            conditions = (cell.batch_size, cell.prompt_set, cell.new_tokens)
            found.setdefault(conditions, {}).setdefault(cell.mode, []).append(summary)
    for modes in found.values():
        for own in modes.values():
            own.sort(key=lambda summary: summary.cell.concurrency)
    return {
        conditions: modes
        for conditions, modes in sorted(found.items())
        if len({summary.cell.concurrency for own in modes.values() for summary in own}) > 1
    }


def requests_per_second(summary: Summary) -> float:
    """Answers per second of a closed-loop cell: its tokens per second over the tokens of one request."""
    return summary.tokens_per_second.value / (summary.cell.batch_size * summary.cell.new_tokens)


def concurrency_tables(summaries: Sequence[Summary], label: Callable[[str], str]) -> list[dict[str, Any]]:
    """One table per conditions, a row per mode and concurrency."""
    return [
        {
            "title": f"Batch {batch}, {prompts} prompts, {tokens} new tokens",
            "rows": [_row(summary, label) for own in modes.values() for summary in own],
        }
        for (batch, prompts, tokens), modes in concurrency_ladders(summaries).items()
    ]


def _row(summary: Summary, label: Callable[[str], str]) -> dict[str, Any]:
    scale = requests_per_second(summary) / summary.tokens_per_second.value
    return {
        "mode": label(summary.cell.mode),
        "colour": colour(summary.cell.mode),
        "concurrency": summary.cell.concurrency,
        "requests": formatting.significant(requests_per_second(summary)),
        "requests_span": formatting.span(summary.tokens_per_second, scale),
        "tokens": formatting.significant(summary.tokens_per_second.value),
        "latency": formatting.milliseconds(summary.latency.value),
        "latency_span": formatting.span(summary.latency, 1e3),
        "p95": formatting.milliseconds(summary.latency_p95_seconds),
    }


LATENCY_NAMES = {"e2e": "latency", "ttft": "first token", "tpot": "per further token"}


def load_section(
    findings: LoadFindings, summaries: list[Summary], label: sentences.Label
) -> dict[str, Any] | None:
    """What the templates show of load; None where there is neither open loop nor several concurrencies."""
    ladders = concurrency_tables(summaries, label)
    if not findings.cells and not ladders:
        return None
    return {
        "sentences": [sentences.sentence(group, findings, label) for group in findings.groups],
        "meaning": findings.criterion.meaning if findings.cells else None,
        "source": findings.source if findings.cells else None,
        "least_share": f"{100 * findings.criterion.least_share:.4g} %",
        "objective": findings.criterion.slo is not None,
        "groups": [_group(group, label) for group in findings.groups],
        "least": formatting.listed([f"{least_requests(share)} (p{100 * share:.0f})" for share in QUANTILES]),
        "settling": f"{100 * SETTLING_SHARE:.0f} %",
        "quantiles": [f"p{100 * share:.0f}" for share in QUANTILES],
        "latency_names": list(LATENCY_NAMES.values()),
        "concurrency": ladders,
    }


def _group(group: LoadGroup, label: sentences.Label) -> dict[str, Any]:
    first = sentences.reference(group)
    return {
        "title": sentences.conditions(group),
        "reference": label(first),
        "knees": [_knee(one, group, first, label) for one in group.knees],
        "cautions": [*_cautions(group, label)],
        "rates": [_rate(cell, label) for one in group.knees for cell in one.cells],
    }


def _cautions(group: LoadGroup, label: sentences.Label) -> Iterator[str]:
    for one in group.knees:
        if one.too_short is not None:
            yield (
                f"{label(one.mode)}: visits of {one.cells[0].cell.requests} requests are too short for this "
                f"objective. A queue that starts empty needs about {one.too_short} to reach it, so the knee "
                "reads too high."
            )


def _knee(one: ModeKnee, group: LoadGroup, first: str, label: sentences.Label) -> dict[str, Any]:
    knee, span = sentences.pair(one.estimate)
    ratio, ratio_span = sentences.pair(group.ratio(first, one.mode), "×")
    return {
        "mode": label(one.mode),
        "colour": colour(one.mode),
        "knee": knee,
        "span": span,
        "ratio": ratio,
        "ratio_span": ratio_span if ratio != "–" else "",
        "rounds": one.rounds,
        "rates": ", ".join(f"{cell.rate:.4g}" for cell in one.cells),
    }


def _rate(one: LoadCell, label: sentences.Label) -> dict[str, Any]:
    return {
        "mode": label(one.cell.mode),
        "colour": colour(one.cell.mode),
        "offered": f"{one.rate:.4g}",
        "share": None if one.cell.load is None else f"{100 * one.cell.load:.4g} % of {one.cell.share_of}",
        "served": _value(one.served_rate),
        "goodput": _value(one.goodput),
        "attainment": _value(one.attainment, 100.0),
        "latencies": [_value(one.quantiles[kind][share], 1e3) for kind in SECONDS for share in QUANTILES],
        "effective_batch": _value(one.effective_batch),
        "sent": one.sent,
        "rounds": len(one.visits),
        "rejected": one.rejected,
        "cut": one.cut,
        "waits": _waits(one.queue_waits),
    }


def _waits(waits: QueueWaits | None) -> list[tuple[str, str]]:
    if waits is None:
        return [("–", "")] * 3
    return [_value(one, 1e3) for one in (waits.measured, waits.replayed, waits.steady)]


def _value(interval: Interval | None, scale: float = 1.0) -> tuple[str, str]:
    """A value that is not negative, and its interval; a dash where it is not known."""
    if interval is None:
        return "–", ""
    known = replace(interval, low=max(0.0, interval.low))
    return formatting.significant(known.value * scale), formatting.span(known, scale)
