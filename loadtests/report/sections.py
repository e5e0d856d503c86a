"""What the report shows, as plain values: the answer per batch size, and the sections with their tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.peers.results import PeersError, PeersRun, read_peers
from loadtests.peers.tables import leaving
from loadtests.peers.tables import milliseconds as peers_milliseconds
from loadtests.peers.tables import ratio as peers_ratio
from loadtests.peers.tables import summaries as peers_summaries
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import wording
from loadtests.report.answer import answer, compared, latency
from loadtests.report.findings import Findings, slowest_over_fastest
from loadtests.report.formatting import (
    colour,
    counted,
    level,
    listed,
    microseconds,
    milliseconds,
    share_span,
    significant,
    span,
    times,
    whole,
)
from loadtests.report.load_section import load_section
from loadtests.report.page import Plot, Section, Table, Text, lines
from loadtests.report.roofline import roofline_section
from loadtests.report.summaries import PhaseMeans, Requests, Summary, Verdict
from loadtests.report.surroundings import environment, mode_status, reproduce, subject
from loadtests.run.run_file import SweepRun
from loadtests.run.validation import Gate
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import CONFIDENCE, EQUIVALENT, Comparison


def context(findings: Findings, plots: Sequence[Plot], peers: PeersRun | None = None) -> dict[str, Any]:
    """Everything that the templates need; `peers` is the comparison with other runtimes."""
    results = findings.results
    return {
        "headline": wording.headline(findings),
        "failed": results.failed_gates,
        "notices": list(_notices(findings)),
        "subject": subject(results.run),
        "answer": answer(findings.main, findings),
        "reasons": [
            ("Why", wording.why(findings)),
            ("How far to trust it", wording.trust(findings)),
            ("What would change it", wording.would_change(findings)),
        ]
        if findings.main
        else [],
        "sections": sections(findings, plots, peers),
        "device": results.device,
        "run": results.run,
        "minimum_rounds": MINIMUM_ROUNDS,
        "baseline": BASELINE,
        "plain": findings.main[0].plain.cell.mode if findings.main else PLAIN,
        "level": level(CONFIDENCE),
        "classes": level(findings.left_open.classes),
        "rate": level(findings.left_open.rate),
        "equal_within": f"{100 * (EQUIVALENT - 1):.0f} %",
        "margin": wording.MARGIN_PERCENT,
        "comparisons": sum(s.comparison is not None and not s.cell.control for s in findings.summaries),
        "least_share": f"{100 * findings.load.criterion.least_share:.4g} %" if findings.load.groups else "",
        "objective": findings.load.criterion.slo is not None,
    }


def _notices(findings: Findings) -> Iterator[tuple[str, str]]:
    """What a reader has to know before the answer, as tone and text."""
    results = findings.results
    if not results.failed_gates:
        count = sum(gate.passed is True and not gate.warning for gate in results.gates)
        yield "", f"Valid run: all {count} checks of the sweep passed (errors, parity, counts, load)"
    for gate in results.gates:
        if gate.warning and gate.passed is False:
            yield "warn", f"warning: {gate.name}: {gate.detail}"


def sections(findings: Findings, plots: Sequence[Plot], peers: PeersRun | None) -> list[Section]:
    """The sections below the answer, in their order."""
    run = findings.results.run
    found = [
        peers_section(peers) if peers else None,
        auto_section(findings),
        load_section(findings.load, findings.summaries),
        Section("The ladder", *_ladder(findings), plots=plots),
        _fusion_section(findings),
        Section(
            "Every mode at every batch size",
            _note_on_modes(findings),
            [table for verdict in findings.verdicts for table in mode_tables(verdict, findings)],
        ),
        _other_conditions(findings),
        roofline_section(findings),
        _parity_section(run),
        Section("Validity", "", list(_validity(findings))),
        Section("Where it was measured", "", below=[*environment(findings.results)]),
        Section(
            "Measure it again",
            f"Seed {run.seed} fixes every round's order, the prompts and the arrivals. All requests are in "
            "requests.jsonl, the tables in cells.csv and summary.csv, the order that was run in run.json, "
            "the server's own counts in server_metrics/.",
            code=reproduce(run),
        ),
    ]
    return [section for section in found if section]


def _other_conditions(findings: Findings) -> Section | None:
    if not findings.others:
        return None
    return Section("Under other conditions", "", [answer(findings.others, findings)])


# Each mode of a group.


def _note_on_modes(findings: Findings) -> str:
    estimated = (
        " Dispatch is estimated, its interval in brackets; what dispatch has less, kernel has more."
        if findings.estimated
        else ""
    )
    return (
        "Latency is the typical round's median, in ms, with its 95 % interval. Speed-ups are paired within "
        "rounds. Parts are means per request; with “outside” (HTTP and the client) they add up to the mean "
        "latency, and “mean − typical” is what that lies above the latency shown. The kernel share is "
        f"kernel / (kernel + dispatch).{estimated}"
    )


def mode_tables(verdict: Verdict, findings: Findings) -> Iterator[Table]:
    """Latency and speed-ups of every cell of a group, and the parts of their time."""
    plain, noise = verdict.plain.cell.mode, verdict.noise
    control = f" {BASELINE} against itself: {wording.ratio(noise)}." if noise else ""
    heads: tuple[str, ...] = (
        "mode", "latency", f"against {plain} (95 %)",
        *([] if plain == BASELINE else [f"against {BASELINE} (95 %)"]), "first token",
        "tokens/s", "requests to pay back, this start", "from an empty cache",
    )  # fmt: skip
    rows = [[_mode(one), *_speed(one, plain)] for one in verdict.summaries]
    yield Table(
        f"Batch {verdict.batch_size}: {wording.conditions(verdict.group)}", heads, rows, control.strip()
    )
    beside = "sync wait" if findings.results.device == "cuda" else "kernel"
    phases = [
        f"{phase} {part}" for phase in ("prefill", "decode") for part in ("dispatch", beside, "kernel share")
    ]
    faults = [one.minor_faults for one in verdict.summaries]
    shown = any((count or 0.0) >= wording.MANY_FAULTS for count in faults)
    heads = ("mode", "queue", *phases, "other", "outside", "mean latency", "mean − typical")
    rows = [[_mode(one), *_parts(one, beside)] for one in verdict.summaries]
    if shown:
        heads += ("page faults",)
        rows = [[*row, Text(whole(count))] for row, count in zip(rows, faults, strict=True)]
    yield Table("", heads, rows, f"{_work(verdict.baseline)}.")


def _work(summary: Summary) -> str:
    """What a request of this group asks for: prompt, padded prompt and attended tokens per sequence."""
    prompt = None if summary.prompt_tokens is None else summary.prompt_tokens / summary.cell.batch_size
    return (
        f"Prompt tokens per sequence {whole(prompt)}, padded to {whole(summary.padded_prompt_tokens)}; "
        f"attended cache positions in the last step {whole(summary.attended_tokens)}"
    )


def _mode(summary: Summary) -> Text:
    under = (
        wording.runs_as(summary),
        "disturbed" if summary.disturbed else None,
    )
    again = " again (control)" if summary.cell.control else ""
    return Text(summary.cell.mode + again, under=lines(*under), colour=colour(summary.cell.mode))


def _speed(summary: Summary, plain: str) -> list[Text]:
    back, control = summary.payback, summary.cell.control
    cache = f"{back.cost.cache} cache" if back.cost and not control else None
    return [
        Text(latency(summary), span(summary.latency, 1e3)),
        compared(summary.against_plain),
        *([] if plain == BASELINE else [compared(summary.comparison, with_word=not control)]),
        Text(milliseconds(summary.first_token.value if summary.first_token else None)),
        Text(significant(summary.tokens_per_second.value)),
        Text("" if control else _requests(back.requests), under=lines(cache)),
        Text("" if control else _requests(back.cold_requests)),
    ]


def _requests(requests: Requests) -> str:
    if requests == "nothing to pay back":
        return "–"
    return requests if isinstance(requests, str) else counted(*requests)


def _parts(summary: Summary, beside: str) -> list[Text]:
    sign = "+" if summary.skew_seconds >= 0 else "−"
    return [
        Text(milliseconds(summary.parts["queue"])),
        *(text for phase in summary.phases for text in _phase(phase, beside)),
        Text(milliseconds(summary.parts["other"])),
        Text(milliseconds(summary.outside_seconds)),
        Text(milliseconds(summary.mean_seconds)),
        Text(f"{sign}{milliseconds(abs(summary.skew_seconds))}"),
    ]


def _phase(phase: PhaseMeans, beside: str) -> list[Text]:
    ends = (phase.dispatch_low_seconds, phase.dispatch_high_seconds)
    low, high = (None if end is None else significant(1e3 * end) for end in ends)
    other = phase.sync_wait_seconds if beside == "sync wait" else phase.kernel_seconds
    return [
        Text(milliseconds(phase.dispatch_seconds), f"{low}–{high}" if low and high and low != high else ""),
        Text(milliseconds(other)),
        kernel_share(phase),
    ]


def kernel_share(phase: PhaseMeans) -> Text:
    """'0.62 (0.55–0.70)', or a dash."""
    return Text("–") if phase.index is None else Text(f"{phase.index:.2f}", share_span(phase.interval))


# The ladder, and fusion × launch.


def _ladder(findings: Findings) -> tuple[str, list[Table]]:
    """How the modes' spread changes with the batch, and dispatch of a step at the smallest batch."""
    if not findings.main:
        return "", []
    smallest, largest = findings.main[0], findings.main[-1]
    told = [wording.crossing(findings.crossover)]
    if largest is not smallest:
        ends = [(end, _spread(end, findings)) for end in (smallest, largest)]
        verb = "converge" if ends[1][1] < ends[0][1] else "do NOT converge"
        reach = ", ".join(f"{times(spread)} at batch {end.batch_size}" for end, spread in ends)
        told.append(f"The modes {verb} as the batch grows: slowest over fastest {reach}.")
    if absent := _no_fusion(findings):
        told.append(f"Fusion × launch is not shown: {absent}.")
    steps = [(one, one.decode.step_dispatch_seconds) for one in smallest.candidates]
    known = [(one, seconds) for one, seconds in steps if seconds is not None]
    heads = ["", *(one.cell.mode for one, _ in known)]
    row = [Text(f"dispatch of a decode step at batch {smallest.batch_size}")]
    row += [Text(microseconds(seconds)) for _, seconds in known]
    return " ".join(told), [Table("", heads, [row])] if known else []


def _spread(end: Verdict, findings: Findings) -> float:
    return slowest_over_fastest({s.cell.mode: findings.results.medians(s.cell.name) for s in end.candidates})


DESIGN = ("inference_mode", "cuda-graph", "compiled", "reduce-overhead")
"""By operators, each kernel launched; the same kernels replayed; fused kernels launched; fused, replayed."""


def _no_fusion(findings: Findings) -> str | None:
    """Why there is no 2×2; None where there is one."""
    if findings.results.device != "cuda":
        return "without CUDA no graph can be replayed, so only fusion can vary"
    swept = {summary.cell.mode for verdict in findings.main for summary in verdict.modes}
    if missing := [mode for mode in DESIGN if mode not in swept]:
        needed = listed(list(DESIGN))
        return f"it needs {needed}, and this sweep left out {listed(missing)}; sweep with --modes all"
    ran = {mode: findings.results.run.mode(mode).get("effective") or mode for mode in DESIGN}
    other = [f"{mode} ran as {effective}" for mode, effective in ran.items() if effective != mode]
    return listed(other) if other else None


def _fusion_section(findings: Findings) -> Section | None:
    if not findings.main or _no_fusion(findings):
        return None
    note = (
        "Latency per request with kernels as they are or fused, launched one by one by the host or replayed "
        f"as one CUDA graph: {listed(list(DESIGN))}. Ratios are paired within rounds "
        "(95 %). Where replaying buys less once kernels are fused, fusion had "
        "removed launches already."
    )
    return Section("Fusion × launch", note, [_design(findings, verdict) for verdict in findings.main])


def _design(findings: Findings, verdict: Verdict) -> Table:
    """What replaying buys as they are and fused; what fusing buys launched, replayed, and both together."""
    plain, replayed, fused, both = (verdict.of(mode) for mode in DESIGN)

    def buys(before: Summary, after: Summary, what: str = "") -> Text:
        found = findings.compared(before.cell, after.cell)
        return Text(times(found.speedup.value) + what, span(found.speedup)) if found else Text("–")

    rows = [
        [Text("as they are"), Text(latency(plain)), Text(latency(replayed)), buys(plain, replayed)],
        [Text("fused"), Text(latency(fused)), Text(latency(both)), buys(fused, both)],
        [Text("fusing buys"), buys(plain, fused), buys(replayed, both), buys(plain, both, " both")],
    ]
    heads = ("kernels", "launched one by one", "replayed", "replaying buys")
    return Table(f"Batch {verdict.batch_size}", heads, rows)


# auto, and runtimes outside PyTorch.


ADVISED_BY = {"live": "requests served before the sweep", "default": "nobody"}
"""By the source that the service names; a sweep has a name of its own."""


@dataclass(frozen=True, slots=True)
class AutoRun:
    """`auto` in one group of cells. `requests` that count, by the mode that ran, most first.

    `comparison` is of `own` against `best`, the fastest mode of the group; None: no round has both.
    """

    own: Summary
    best: Summary
    requests: dict[str, int]
    comparison: Comparison | None
    advised_by: str

    @property
    def shares(self) -> str:
        """'compiled 75 %, inference_mode 25 %'."""
        total = sum(self.requests.values())
        return ", ".join(f"{mode} {100 * count / total:.3g} %" for mode, count in self.requests.items())


def auto_runs(findings: Findings) -> list[AutoRun]:
    """One for each group that has `auto`, in the order of the verdicts."""
    found = (_auto_run(verdict, findings) for verdict in findings.verdicts)
    return [one for one in found if one is not None]


def auto_numbers(verdict: Verdict, findings: Findings) -> dict[str, Any] | None:
    """The same for programs; None without `auto`."""
    found = _auto_run(verdict, findings)
    if found is None:
        return None
    ratio = found.comparison.speedup if found.comparison else None
    return {
        "requests": found.requests,
        "best": found.best.cell.mode,
        "speedup": None if ratio is None else [ratio.value, ratio.low, ratio.high],
        "word": found.comparison.word if found.comparison else None,
    }


def _auto_run(verdict: Verdict, findings: Findings) -> AutoRun | None:
    own = verdict.auto
    if own is None:
        return None
    fastest = min(verdict.candidates, key=lambda one: one.latency.value)
    best = verdict.of(verdict.choice.fastest) if verdict.choice else fastest
    return AutoRun(
        own=own,
        best=best,
        requests=_picked(own, findings),
        comparison=findings.compared(best.cell, own.cell),
        advised_by=_advised_by(findings.results.run, own),
    )


def _picked(own: Summary, findings: Findings) -> dict[str, int]:
    counted = (
        findings.results.measured.filter(pl.col("cell") == own.cell.name)
        .group_by(pl.col("picked_mode").cast(pl.String))
        .len()
        .sort("len", "picked_mode", descending=[True, False])
        .collect()
    )
    return dict(counted.iter_rows())


def _advised_by(run: SweepRun, own: Summary) -> str:
    """Who advised at the start, on the smallest bucket that the batch fits in."""
    auto = run.auto or {"batches": []}
    fitting = [one for one in auto["batches"] if one["batch_bucket"] >= own.cell.batch_size]
    source = min(fitting, key=lambda one: int(one["batch_bucket"]))["source"] if fitting else None
    return str(auto["sweep"]) if source == "sweep" else ADVISED_BY.get(str(source), "unknown")


def auto_section(findings: Findings) -> Section | None:
    """What `auto` ran; None without it."""
    found = auto_runs(findings)
    if not found:
        return None
    note = (
        "Each of its requests ran in the mode that was advised for the batch size. Its speed is paired "
        "within rounds with that of the fastest mode here (95 %)."
    )
    return Section("auto", note, [auto_table(found)])


def auto_table(found: Sequence[AutoRun]) -> Table:
    """A row per group that has `auto`."""
    rows = [
        [
            Text(f"{one.own.cell.batch_size}", under=(wording.conditions(one.own.cell.group),)),
            Text(one.shares),
            Text(one.advised_by),
            Text(latency(one.own)),
            Text(one.best.cell.mode),
            Text(latency(one.best)),
            compared(one.comparison) if one.comparison else Text("not in the same rounds"),
        ]
        for one in found
    ]
    heads = (
        "batch", "auto ran", "advised by", "latency", "fastest mode", "its latency", "speed against it",
    )  # fmt: skip
    return Table("", heads, rows, left=3)


def comparable(folder: Path, sweep: SweepRun) -> PeersRun:
    """The comparison in `folder`. Raises PeersError for another model or processor than that of `sweep`."""
    run = read_peers(folder)
    for what, theirs, ours in (
        ("model", run.model_hash, sweep.engine.get("model_hash")),
        ("processor", run.environment.get("cpu"), sweep.environment.get("cpu")),
    ):
        if theirs != ours:
            raise PeersError(f"{folder} was measured on {what} {theirs}, this sweep on {ours}: compare like")
    return run


def peers_section(run: PeersRun) -> Section:
    """What leaving PyTorch would buy, from a comparison with other runtimes made apart."""
    found = peers_summaries(run)
    rows = []
    for one in found:
        if one.best_mode is None or one.best_outside is None:
            continue
        seconds = {standing.contestant.name: standing.seconds.value for standing in one.standings}
        told = [text for name in (one.best_mode, one.best_outside) for text in (name, seconds[name])]
        cells = [text if isinstance(text, str) else peers_milliseconds(text) for text in told]
        rows.append([Text(str(one.batch)), *map(Text, cells), Text(peers_ratio(one.leaving))])
    sentence = leaving(found)
    source = (
        f"Whole model calls, measured {run.started}, commit {str(run.environment.get('commit'))[:8]}, "
        f"{run.prompt_tokens} prompt and {run.new_tokens} new tokens, {run.rounds} rounds, on one core."
    )
    heads = ("batch", "fastest mode", "ms", "fastest runtime outside PyTorch", "ms", "ratio")
    note = " ".join(filter(None, [run.incomplete, sentence[:1].upper() + sentence[1:], source]))
    return Section("Outside PyTorch", note, [Table("", heads, rows)] if rows else [])


# Parity, and whether the sweep is valid.


def _parity_section(run: SweepRun) -> Section:
    note = (
        f"At warm-up every mode runs fixed prompts teacher-forced beside {BASELINE}. Cold start is what its "
        "compilations take with an empty compile cache."
    )
    heads = (
        "mode", "parity", "largest logit difference", "greedy tokens", "warm-up", "cache", "compiled",
        "cold start", "what this mode removes",
    )  # fmt: skip
    rows = [_status_row(mode_status(run, mode)) for mode in run.plan.ladder_modes]
    return Section("Parity and warm-up", note, [Table("", heads, rows, left=2)])


def _status_row(status: Mapping[str, str]) -> list[Text]:
    under = (
        () if status["effective"] == status["mode"] else (f"as {status['effective']}: {status['reason']}",)
    )
    mode = Text(status["mode"], under=under, colour=colour(status["mode"]))
    names = ("parity", "difference", "tokens", "warmup", "cache", "compiled", "cold_start", "removes")
    return [mode, *(Text(status[name]) for name in names)]


def _validity(findings: Findings) -> Iterator[Table]:
    rows = [
        [Text(gate.name), Text("", word=_verdict(gate)), Text(gate.detail)] for gate in findings.results.gates
    ]
    rows.append([Text("selftest"), Text(""), Text(findings.proof.selftest)])
    yield Table("", ("check", "verdict", "detail"), rows, left=3)
    if added := [*wording.rests_on(findings)]:
        note = (
            "An interval of dispatch and kernel adds up these errors. More rounds or new tokens narrow "
            "counting alone."
        )
        yield Table(
            "What the split rests on", ("", "main conditions"), [[*map(Text, row)] for row in added], note, 2
        )


def _verdict(gate: Gate) -> str:
    if gate.passed is None:
        return "does not apply"
    return "passed" if gate.passed else "warning" if gate.warning else "FAILED"
