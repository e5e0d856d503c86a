"""The ladder of concurrencies: what a closed loop with more requests in flight does to each mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from loadtests.report import formatting
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary

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
