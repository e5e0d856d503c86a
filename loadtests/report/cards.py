"""The answer per batch size as plain values: a card with the mode to ship, and a table of all its cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadtests.plan.cells import MINIMUM_ROUNDS
from loadtests.report import formatting
from loadtests.report.plotting import colour
from loadtests.report.verdict import Summary, Verdict
from loadtests.run.run_file import SweepRun
from service.statistics.boundedness import bound


def card(verdict: Verdict, run: SweepRun) -> dict[str, Any]:
    """The answer for one group: what to ship, its gain, why, and how the modes compare."""
    shipped = verdict.shipped
    slowest = max(summary.latency.value for summary in verdict.modes)
    bars = [
        {
            "mode": s.cell.mode,
            "colour": colour(s.cell.mode),
            "share": 100 * s.latency.value / slowest,
            "latency": formatting.milliseconds(s.latency.value),
            "shipped": s is shipped,
        }
        for s in verdict.modes
    ]
    batch, prompts, tokens, concurrency, _ = verdict.group
    return {
        "batch": batch,
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "ship": shipped.cell.mode if shipped else "undecided",
        "runs_as": shipped.runs_as if shipped else None,
        "colour": colour(shipped.cell.mode) if shipped else colour(""),
        "gain": formatting.gain(verdict),
        "latency": _latencies(verdict),
        "interval": formatting.span(shipped.comparison.speedup) if shipped and shipped.comparison else None,
        "bound": _bound(verdict.baseline),
        "facts": list(_facts(verdict, shipped, run)),
        "bars": bars,
    }


def _facts(verdict: Verdict, shipped: Summary | None, run: SweepRun) -> Iterator[str]:
    baseline = verdict.baseline
    yield _shares([baseline] if shipped in (None, baseline) else [baseline, shipped])
    if shipped is None:
        yield f"Run at least {MINIMUM_ROUNDS} rounds to decide."
        return
    if shipped.runs_as:
        reason = run.mode(shipped.cell.mode).get("reason")
        yield f"{shipped.cell.mode} runs here as {shipped.runs_as}{f': {reason}' if reason else ''}."
    if shipped is not baseline:
        yield _payback(shipped, run.mode(shipped.cell.mode))
    if tie := formatting.tie(verdict):
        yield tie
    if shipped.disturbed or baseline.disturbed:
        yield "Disturbed: the engine was preempted while this was measured."


def _latencies(verdict: Verdict) -> str | None:
    shipped = verdict.shipped
    if shipped is None or shipped is verdict.baseline:
        return None
    own, before = (formatting.milliseconds(s.latency.value) for s in (shipped, verdict.baseline))
    return f"{own} instead of {before}"


def _shares(summaries: list[Summary | None]) -> str:
    """Kernels' share of dispatch and kernel time (the device-bound index) as a sentence."""
    known = [
        f"{'at most ' if s.upper_estimate else ''}{100 * s.index:.0f} % in {s.cell.mode} ({bound(s.index)})"
        for s in summaries
        if s and s.index is not None
    ]
    if not known:
        return "Launch- or kernel-bound is unknown: kernel time is not measured here."
    return f"Kernels' share of dispatch and kernel time: {', '.join(known)}."


def _bound(baseline: Summary) -> str | None:
    found = bound(baseline.index)
    return f"{found} (upper)" if found and baseline.upper_estimate else found


def _payback(shipped: Summary, status: dict[str, Any]) -> str:
    seconds = status.get("warmup_seconds")
    cache = status.get("cache")
    warmup = f"warm-up ({formatting.significant(seconds)} s, {cache} cache)" if seconds else "warm-up"
    match shipped.payback:
        case int(requests) if requests > 0:
            return f"Its {warmup} is paid back after {requests:,} requests."
        case int():
            return f"Its {warmup} is paid back at once."
        case "nothing to pay back":
            return "Nothing is compiled: there is no warm-up to pay back."
        case why:
            return f"Requests until its {warmup} is paid back: {why}."


def table(verdict: Verdict) -> dict[str, Any]:
    """All cells of one group, one row each, as text."""
    batch, prompts, tokens, concurrency, _ = verdict.group
    return {
        "title": f"Batch {batch}",
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "noise": formatting.times(verdict.noise),
        "rows": [_row(summary) for summary in verdict.summaries],
    }


def _row(summary: Summary) -> dict[str, Any]:
    control = summary.cell.control
    comparison = summary.comparison
    return {
        "mode": summary.cell.mode,
        "colour": colour(summary.cell.mode),
        "control": control,
        "effective": summary.runs_as,
        "disturbed": summary.disturbed,
        "latency": formatting.milliseconds(summary.latency.value),
        "latency_span": formatting.span(summary.latency, 1e3),
        "tokens": formatting.significant(summary.tokens_per_second.value),
        **{part: formatting.milliseconds(value) for part, value in summary.parts.items()},
        "outside": formatting.milliseconds(summary.outside_seconds),
        "index": "–" if summary.index is None else f"{summary.index:.2f}",
        "speedup": formatting.times(comparison.speedup.value) if comparison else "–",
        "speedup_span": formatting.span(comparison.speedup) if comparison else None,
        "word": comparison.word if comparison and not control else "",
        "payback": formatting.payback(summary.payback) if comparison and not control else "",
    }
