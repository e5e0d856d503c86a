"""The report's section on load as plain values: sentences, knees, rates, and the ladder of concurrencies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from loadtests.report import formatting
from loadtests.report.load import sentences
from loadtests.report.load.cells import QUANTILES, LoadCell
from loadtests.report.load.concurrency import concurrency_tables
from loadtests.report.load.findings import LoadFindings
from loadtests.report.load.knees import LoadGroup, ModeKnee
from loadtests.report.load.objectives import SECONDS
from loadtests.report.load.witness import Witness
from loadtests.report.plotting import colour
from loadtests.report.summaries import Summary
from service.statistics.intervals import Interval
from service.statistics.quantiles import least_requests
from service.statistics.visits import SETTLING_SHARE

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
        "waits": _waits(one.witness),
    }


def _waits(witness: Witness | None) -> list[tuple[str, str]]:
    if witness is None:
        return [("–", "")] * 3
    return [_value(one, 1e3) for one in (witness.measured, witness.replayed, witness.steady)]


def _value(interval: Interval | None, scale: float = 1.0) -> tuple[str, str]:
    """A value that is not negative, and its interval; a dash where it is not known."""
    if interval is None:
        return "–", ""
    known = replace(interval, low=max(0.0, interval.low))
    return formatting.significant(known.value * scale), formatting.span(known, scale)
