"""The contents of the report's page and of its Markdown version, as plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from loadtests.peers.results import PeersRun
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import explained, formatting, wording
from loadtests.report.auto_section import auto_section
from loadtests.report.comparison import slowest_over_fastest
from loadtests.report.crossing import crossing
from loadtests.report.explained import MANY_FAULTS
from loadtests.report.formatting import cores, level, milliseconds
from loadtests.report.load.section import load_section
from loadtests.report.payback import Requests
from loadtests.report.peers_section import peers_section
from loadtests.report.phases import PhaseMeans
from loadtests.report.plotting import colour
from loadtests.report.proof import proof
from loadtests.report.results import Results
from loadtests.report.roofline_section import roofline_section
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.surroundings import environment, mode_status, reproduce, subject
from loadtests.report.verdict import PLAIN, Findings
from loadtests.report.wall_time import wall_time
from loadtests.report.wording import short_name
from service.statistics.choice import EQUIVALENT, Comparison, compare
from service.statistics.intervals import Interval


def view(findings: Findings, peers: PeersRun | None = None) -> dict[str, Any]:
    """Everything the templates need, save the plots; `peers` is the comparison with other runtimes."""
    results = findings.results
    run = results.run
    gates = results.gates
    design = fusion_launch(findings)
    return {
        "headline": wording.headline(findings),
        "crossing": crossing(findings.crossover, findings.estimated) + ".",
        "failed": results.failed_gates,
        "warnings": [gate for gate in gates if gate.warning and gate.passed is False],
        "gates": gates,
        "passed_count": sum(gate.passed is True and not gate.warning for gate in gates),
        "subject": subject(run),
        "proof": proof(findings),
        "peers": None if peers is None else peers_section(peers),
        "cards": [card(verdict, findings) for verdict in findings.main],
        "other_cards": [card(verdict, findings) for verdict in findings.others],
        "tables": [table(verdict) for verdict in findings.verdicts],
        "load": load_section(findings.load, findings.summaries, findings.label),
        "auto": auto_section(findings),
        "ladder": [*ladder(findings), *([design.absent] if design.absent else [])],
        "designs": design.designs,
        "roofline": roofline_section(findings),
        "modes": [mode_status(run, mode) for mode in run.plan.ladder_modes],
        "environment": [
            *environment(run),
            *load_side(results),
            ("measured requests", wall_time(results).text),
        ],
        "reproduce": reproduce(run),
        "device": results.device,
        "estimated": findings.estimated,
        "run": run,
        "rounds": _rounds(findings),
        "minimum_rounds": MINIMUM_ROUNDS,
        "baseline": BASELINE,
        "level": level(findings.confidence),
        "classes": level(findings.left_open.classes),
        "rate": level(findings.left_open.rate),
        "plain": PLAIN,
        "equal_within": f"{100 * (EQUIVALENT - 1):.0f} %",
        "comparisons": sum(s.comparison is not None and not s.cell.control for s in findings.summaries),
    }


def _rounds(findings: Findings) -> str:
    """Of the main conditions: '16', or '12 to 16' where some were decided earlier."""
    counts = {s.comparison.speedup.samples for v in findings.main for s in v.summaries if s.comparison}
    counts = counts or {len(findings.results.run.order)}
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))


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


def ladder(findings: Findings) -> Iterator[str]:
    """A sentence on dispatch at the smallest batch, and one on the modes at both ends."""
    if not findings.main:
        return
    smallest, largest = findings.main[0], findings.main[-1]
    steps = [
        f"{short_name(one)} {formatting.microseconds(seconds)}"
        for one in smallest.candidates
        if (seconds := one.decode.step_dispatch_seconds) is not None
    ]
    if steps:
        yield f"Dispatch of a decode step at batch {smallest.batch_size}: {', '.join(steps)}."
    if largest is not smallest:
        spreads = [
            slowest_over_fastest({s.cell.mode: findings.results.medians(s.cell.name) for s in end.candidates})
            for end in (smallest, largest)
        ]
        verb = "converge" if spreads[1] < spreads[0] else "do NOT converge"
        yield (
            f"The modes {verb} as the batch grows: the slowest takes {formatting.times(spreads[0])} the"
            f" fastest's time at batch {smallest.batch_size}, {formatting.times(spreads[1])}"
            f" at batch {largest.batch_size}."
        )


def load_side(results: Results) -> Iterator[tuple[str, str]]:
    """The lines about the load generator, as label and text."""
    client, workers = results.run.client, results.run.settings.get("workers", 1)
    processes = f"{workers} load processes and their master, all" if workers > 1 else "one process"
    yield "load generator", f"{processes} on {cores(client.cpus)}"
    share = "not known" if client.cpu_share is None else f"{client.cpu_share:.0%} of one core"
    yield "CPU of the load generator", f"{share}, of its busiest process or core" if workers > 1 else share
    yield "schedule delay", _schedule_delay(results)


def _schedule_delay(results: Results) -> str:
    """How late open-loop requests left: quantiles of start − due time over all that were measured."""
    opened = pl.col("load").is_not_null() | pl.col("cell").is_in(list(results.run.client.rates))
    delay = pl.col("start") - pl.col("intended_start")
    found = (
        results.rows.lazy()
        .filter(opened & (pl.col("stage") == "measure"))
        .select(
            pl.len().alias("requests"),
            delay.quantile(0.5, "linear").alias("p50"),
            delay.quantile(0.99, "linear").alias("p99"),
            delay.max().alias("max"),
        )
        .collect()
        .row(0, named=True)
    )
    if not found["requests"]:
        return "not measured: no request of this plan had a due time (an open loop's have)"
    quantiles = ", ".join(f"{name} {milliseconds(found[name])}" for name in ("p50", "p99", "max"))
    return f"{quantiles}, of {found['requests']:,} open-loop requests"


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


def _phase(phase: PhaseMeans) -> dict[str, Any]:
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
