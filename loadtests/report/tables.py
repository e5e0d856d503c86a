"""All cells of one group as two tables of text: how they compare, and where their time goes."""

from __future__ import annotations

from typing import Any

from loadtests.report import formatting, wording
from loadtests.report.explained import MANY_FAULTS
from loadtests.report.payback import Requests
from loadtests.report.phases import Phase
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary, Verdict
from service.statistics.choice import Comparison


def table(verdict: Verdict) -> dict[str, Any]:
    """All cells of one group, one row each; `faults`: whether that column holds anything."""
    batch, prompts, tokens, concurrency, *_ = verdict.group
    noise = verdict.noise
    counted = [_faults(summary) or 0.0 for summary in verdict.summaries]
    return {
        "title": f"Batch {batch}",
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "noise": f"{formatting.times(noise.value)} ({formatting.span(noise)})" if noise else None,
        "rows": [_row(summary) for summary in verdict.summaries],
        "faults": max(counted) >= MANY_FAULTS,
        "work": work(verdict.baseline),
    }


def work(summary: Summary) -> str:
    """What a request of this group asks for: prompt, padded prompt and attended tokens per sequence."""
    prompt = None if summary.prompt_tokens is None else summary.prompt_tokens / summary.cell.batch_size
    return (
        f"prompt tokens per sequence {formatting.whole(prompt)}, "
        f"padded to {formatting.whole(summary.padded_prompt_tokens)}; "
        f"attended cache positions in the last step {formatting.whole(summary.attended_tokens)}"
    )


def _row(summary: Summary) -> dict[str, Any]:
    control = summary.cell.control
    shown = None if control else summary.comparison
    return {
        "mode": wording.short_name(summary),
        "requested": summary.cell.mode if summary.runs_as else None,
        "colour": colour(summary.cell.mode),
        "control": control,
        "disturbed": summary.disturbed,
        "latency": formatting.milliseconds(summary.latency.value),
        "latency_span": formatting.span(summary.latency, 1e3),
        "first_token": formatting.milliseconds(summary.first_token.value if summary.first_token else None),
        "tokens": formatting.significant(summary.tokens_per_second.value),
        "speedup": _compared(summary.comparison),
        "word": shown.word if shown else "",
        "plain": _compared(summary.against_plain),
        "plain_word": summary.against_plain.word if summary.against_plain else "",
        "payback": "" if control else _requests(summary.payback.requests),
        "payback_cache": summary.payback.cost.cache if summary.payback.cost and not control else None,
        "cold_payback": "" if control else _requests(summary.payback.cold_requests),
        "queue": formatting.milliseconds(summary.parts["queue"]),
        "other": formatting.milliseconds(summary.parts["other"]),
        "outside": formatting.milliseconds(summary.outside_seconds),
        "mean": formatting.milliseconds(summary.mean_seconds),
        "skew": _signed(summary.skew_seconds),
        "faults": formatting.whole(_faults(summary)),
        "prefill": _phase(summary.prefill),
        "decode": _phase(summary.decode),
    }


def _faults(summary: Summary) -> float | None:
    """Minor page faults per request on average, of both phases; None where they were not recorded."""
    counts = [phase.minor_faults for phase in summary.phases if phase.minor_faults is not None]
    return sum(counts) if counts else None


def _phase(phase: Phase) -> dict[str, Any]:
    ends = (phase.dispatch_low_seconds, phase.dispatch_high_seconds)
    low, high = (None if end is None else formatting.significant(1e3 * end) for end in ends)
    return {
        "dispatch": formatting.milliseconds(phase.dispatch_seconds),
        "dispatch_span": f"{low}–{high}" if low and high and low != high else None,
        "kernel": formatting.milliseconds(phase.kernel_seconds),
        "sync_wait": formatting.milliseconds(phase.sync_wait_seconds),
        "index": "–" if phase.index is None else f"{phase.index:.2f}",
        "index_span": None if phase.index is None else formatting.share_span(phase.interval),
    }


def _compared(comparison: Comparison | None) -> dict[str, str]:
    if comparison is None:
        return {"value": "–", "span": ""}
    return {"value": formatting.times(comparison.speedup.value), "span": formatting.span(comparison.speedup)}


def _requests(requests: Requests) -> str:
    if requests == "nothing to pay back":
        return "–"
    return requests if isinstance(requests, str) else formatting.counted(*requests)


def _signed(seconds: float) -> str:
    sign = "+" if seconds >= 0 else "−"
    return f"{sign}{formatting.significant(abs(seconds) * 1e3)} ms"
