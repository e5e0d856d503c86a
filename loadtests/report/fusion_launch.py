"""Fusion × launch as a 2×2 design: what fused kernels buy, what a replayed graph buys, and both together."""

from __future__ import annotations

from dataclasses import dataclass

from loadtests.report import formatting
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import Findings
from service.statistics.choice import compare
from service.statistics.intervals import Interval

LAUNCHED, REPLAYED, FUSED, BOTH = "inference_mode", "cuda-graph", "compiled", "reduce-overhead"
"""By operators, each kernel launched; the same kernels replayed; fused kernels launched; fused, replayed."""

Buys = tuple[str, str]
"""A speed-up, and the ends of its interval."""


@dataclass(frozen=True, slots=True)
class DesignRow:
    """Latencies with kernels launched one by one and replayed in a graph, and what replaying buys."""

    fused: str
    launched: str
    replayed: str
    replay_buys: Buys


@dataclass(frozen=True, slots=True)
class Design:
    """One batch size; what fusion buys where kernels are launched, where replayed, and both together."""

    batch: int
    rows: tuple[DesignRow, DesignRow]
    fusion_buys: tuple[Buys, Buys, Buys]


@dataclass(frozen=True, slots=True)
class FusionLaunch:
    """A 2×2 per batch size; without the four modes none, and `absent` says why."""

    designs: tuple[Design, ...]
    absent: str | None = None


def fusion_launch(findings: Findings) -> FusionLaunch:
    """The designs of the main conditions, their ratios paired within rounds."""
    if absent := _absent(findings):
        return FusionLaunch((), absent)
    return FusionLaunch(tuple(_design(findings, verdict) for verdict in findings.main))


def _absent(findings: Findings) -> str | None:
    """Why there is no 2×2, in one sentence."""
    wanted = (LAUNCHED, REPLAYED, FUSED, BOTH)
    if findings.results.device != "cuda":
        return "Fusion × launch is not shown: without CUDA no graph can be replayed, so only fusion can vary."
    swept = {summary.cell.mode for verdict in findings.main for summary in verdict.modes}
    if missing := [mode for mode in wanted if mode not in swept]:
        return (
            f"Fusion × launch is not shown: it needs {formatting.listed(list(wanted))}, and this sweep "
            f"left out {formatting.listed(missing)}; sweep with --modes all."
        )
    if other := [f"{mode} ran as {findings.label(mode)}" for mode in wanted if findings.label(mode) != mode]:
        return f"Fusion × launch is not shown: {formatting.listed(other)}."
    return None


def _design(findings: Findings, verdict: Verdict) -> Design:
    plain, replayed, fused, both = (verdict.of(mode) for mode in (LAUNCHED, REPLAYED, FUSED, BOTH))

    def row(name: str, one: Summary, other: Summary) -> DesignRow:
        return DesignRow(name, _latency(one), _latency(other), _buys(findings, one, other))

    return Design(
        batch=verdict.batch_size,
        rows=(row("as they are", plain, replayed), row("fused", fused, both)),
        fusion_buys=(
            _buys(findings, plain, fused),
            _buys(findings, replayed, both),
            _buys(findings, plain, both),
        ),
    )


def _latency(summary: Summary) -> str:
    return formatting.milliseconds(summary.latency.value)


def _buys(findings: Findings, before: Summary, after: Summary) -> Buys:
    """The speed-up of `after` over `before`; a dash where no round has both."""
    rounds = [findings.results.medians(summary.cell.name) for summary in (before, after)]
    if not rounds[0].keys() & rounds[1].keys():
        return "–", ""
    speedup: Interval = compare(rounds[0], rounds[1], findings.confidence).speedup
    return formatting.times(speedup.value), formatting.span(speedup)
