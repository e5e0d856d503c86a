"""The answer per batch size as plain values: a card with the mode to ship, its gain and the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import explained, formatting, wording
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import PLAIN, Findings


def card(verdict: Verdict, findings: Findings) -> dict[str, Any]:
    """The answer for one group: what to ship, its gain, why, and how the modes compare."""
    shipped = verdict.shipped
    batch, prompts, tokens, concurrency, *_ = verdict.group
    compared = shipped.comparison if shipped else None
    return {
        "batch": batch,
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "ship": wording.short_name(shipped) if shipped else "undecided",
        "stands_for": wording.stands_for(shipped, findings.results.device) if shipped else None,
        "colour": colour(shipped.cell.mode) if shipped else colour(""),
        "gain": wording.gain(verdict),
        "latency": _latencies(verdict),
        "interval": formatting.span(compared.speedup) if compared else None,
        "against_plain": _against_plain(shipped),
        "bound": wording.limit(verdict.baseline.decode),
        "facts": list(_facts(verdict, shipped, findings)),
        "bars": _bars(verdict),
    }


def _bars(verdict: Verdict) -> list[dict[str, Any]]:
    slowest = max(summary.latency.value for summary in verdict.modes)
    tied = wording.tied_with(verdict)
    return [
        {
            "mode": wording.short_name(s),
            "colour": colour(s.cell.mode),
            "share": 100 * s.latency.value / slowest,
            "latency": formatting.milliseconds(s.latency.value),
            "shipped": s is verdict.shipped,
            "tied": s.cell.mode in tied,
        }
        for s in verdict.modes
    ]


def _facts(verdict: Verdict, shipped: Summary | None, findings: Findings) -> Iterator[str]:
    baseline, run = verdict.baseline, findings.results.run
    if tie := wording.tie(verdict, findings.confidence):
        yield tie
    yield explained.shares([baseline] if shipped in (None, baseline) else [baseline, shipped])
    if room := explained.headroom(verdict):
        yield room
    if shipped is None:
        yield f"Run at least {MINIMUM_ROUNDS} rounds to decide."
        return
    if why := explained.what_is_saved(verdict):
        yield why
    if shipped.runs_as:
        reason = run.mode(shipped.cell.mode).get("reason")
        yield f"{shipped.cell.mode} runs here as {shipped.runs_as}{f': {reason}' if reason else ''}."
    if shipped is not baseline:
        yield explained.paid_back(shipped)
    if shipped.disturbed or baseline.disturbed:
        yield "Disturbed: the engine was preempted while this was measured."


def _latencies(verdict: Verdict) -> str | None:
    shipped = verdict.shipped
    if shipped is None or shipped is verdict.baseline:
        return None
    before, own = (formatting.significant(1e3 * s.latency.value) for s in (verdict.baseline, shipped))
    return f"{before} → {own} ms"


def _against_plain(shipped: Summary | None) -> str | None:
    """The speed-up over the best rung without a compiler; None for that rung and for the baseline."""
    if shipped is None or shipped.against_plain is None or shipped.cell.mode == BASELINE:
        return None
    speedup = shipped.against_plain.speedup
    return f"{formatting.times(speedup.value)} {PLAIN} ({formatting.span(speedup)})"
