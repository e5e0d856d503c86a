"""What the report shows, as plain values: the answer per batch size, and the sections with their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import wording
from loadtests.report.answer import answer, compared, latency
from loadtests.report.findings import Findings
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
from loadtests.report.summaries import REMEDY, PhaseMeans, Requests, Summary, Verdict
from loadtests.report.surroundings import environment, reproduce, subject
from loadtests.run.run_file import SweepRun
from loadtests.run.validation import Gate
from service.records import PHASES
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import CONFIDENCE, EQUIVALENT
from service.statistics.knee import SERVED_SHARE


def context(findings: Findings, plots: Sequence[Plot]) -> dict[str, Any]:
    results = findings.results
    return {
        "headline": wording.headline(findings),
        "failed": results.failed_gates,
        "notices": list(_notices(findings)),
        "subject": subject(results.run),
        "answer": answer(findings.main, findings),
        "reasons": wording.reasons(findings),
        "sections": sections(findings, plots),
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
        "least_share": f"{100 * SERVED_SHARE:.4g} %" if findings.load.knees else "",
    }


def _notices(findings: Findings) -> Iterator[tuple[str, str]]:
    results = findings.results
    if not results.failed_gates:
        count = sum(gate.passed is True and not gate.warning for gate in results.gates)
        yield "", f"Valid run: all {count} checks of the sweep passed (errors, parity, counts, load)"
    for gate in results.warnings:
        yield "warn", f"warning: {gate.name}: {gate.detail}"


def sections(findings: Findings, plots: Sequence[Plot]) -> list[Section]:
    run = findings.results.run
    found = [
        load_section(findings.load),
        Section("The ladder", *_ladder(findings), plots=plots),
        _fusion_section(findings),
        Section(
            "Every mode at every batch size",
            _note_on_modes(findings),
            [table for verdict in findings.verdicts for table in mode_tables(verdict, findings)],
        ),
        Section("Under other conditions", "", [answer(findings.others, findings)])
        if findings.others
        else None,
        roofline_section(findings),
        _parity_section(run),
        Section("Validity", "", [_gates(findings)]),
        Section("Where it was measured", "", below=environment(run)),
        Section(
            "Measure it again",
            f"Seed {run.seed} fixes every round's order, the prompts and the arrivals. All requests are in "
            "requests.jsonl, the tables in cells.csv and summary.csv, the order that was run in run.json, "
            "the server's own counts in server_metrics/.",
            code=reproduce(run),
        ),
    ]
    return [section for section in found if section]


# Each mode of a group.

MANY_FAULTS = 10
"""Page faults per request that are worth a column."""


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
    phases = [f"{phase} {part}" for phase in PHASES for part in ("dispatch", beside, "kernel share")]
    faults = [one.minor_faults for one in verdict.summaries]
    shown = any((count or 0.0) >= MANY_FAULTS for count in faults)
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
    again = " again (control)" if summary.cell.control else ""
    under = lines(wording.runs_as(summary), "disturbed" if summary.disturbed else None)
    return Text(summary.cell.mode + again, under=under, colour=colour(summary.cell.mode))


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
    sentences = [wording.crossing(findings.crossover)]
    if largest is not smallest:
        ends = [(end, _spread(end)) for end in (smallest, largest)]
        verb = "converge" if ends[1][1] < ends[0][1] else "do NOT converge"
        reach = ", ".join(f"{times(spread)} at batch {end.batch_size}" for end, spread in ends)
        sentences.append(f"The modes {verb} as the batch grows: slowest over fastest {reach}.")
    steps = {one.cell.mode: one.decode.step_dispatch_seconds for one in smallest.modes}
    known = {mode: seconds for mode, seconds in steps.items() if seconds is not None}
    row = [f"dispatch of a decode step at batch {smallest.batch_size}", *map(microseconds, known.values())]
    table = Table("", ["", *known], [[*map(Text, row)]])
    return " ".join(sentences), [table] if known else []


def _spread(end: Verdict) -> float:
    """The slowest mode's latency over the fastest's."""
    latencies = [one.latency.value for one in end.modes]
    return max(latencies) / min(latencies)


DESIGN = ("inference_mode", "cuda-graph", "compiled", "reduce-overhead")
"""By operators, each kernel launched; the same kernels replayed; fused kernels launched; fused, replayed."""


def _fusion_section(findings: Findings) -> Section | None:
    """None where one of the four was not swept, or ran as something else, as without CUDA."""
    whole = [one for one in findings.main if {s.cell.mode for s in one.modes}.issuperset(DESIGN)]
    ran = [findings.results.run.mode(mode).get("effective") or mode for mode in DESIGN]
    if not whole or tuple(ran) != DESIGN or findings.results.device != "cuda":
        return None
    note = (
        "Latency per request with kernels as they are or fused, launched one by one by the host or replayed "
        f"as one CUDA graph: {listed(list(DESIGN))}. Ratios are paired within rounds "
        "(95 %). Where replaying buys less once kernels are fused, fusion had "
        "removed launches already."
    )
    return Section("Fusion × launch", note, [_design(findings, verdict) for verdict in whole])


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
    rows = [_status(mode, run.mode(mode)) for mode in run.plan.modes]
    return Section("Parity and warm-up", note, [Table("", heads, rows, left=2)])


def _status(mode: str, status: dict[str, Any]) -> list[Text]:
    effective, warmup = status.get("effective") or "unknown", status.get("warmup_seconds")
    under = () if effective == mode else (f"as {effective}: {status.get('reason') or ''}",)
    seconds = [c["seconds"] for c in status.get("compilations") or []] or status.get("compile_seconds")
    texts = [
        *_parity(status.get("parity")),
        f"{significant(warmup)} s" if warmup else "–",
        status.get("cache") or "–",
        f"{len(seconds)} in {significant(sum(seconds))} s" if seconds else "–",
        _cold_start(status),
        status.get("removes") or "",
    ]
    return [Text(mode, under=under, colour=colour(mode)), *map(Text, texts)]


def _parity(parity: dict[str, Any] | None) -> list[str]:
    if not parity:
        return ["not checked", "–", "–"]
    return [
        "in parity" if parity["passed"] else "OUT OF PARITY",
        f"{parity['max_abs_logit_difference']:.1e} of {parity['tolerance']:.0e} allowed",
        f"{parity['differing_tokens']} of {parity['positions']} differ, {parity['near_ties']} near ties",
    ]


def _cold_start(status: dict[str, Any]) -> str:
    compilations = status.get("compilations") or []
    if not compilations:
        return "unknown" if status.get("compile_seconds") else "–"
    seconds = [c["seconds"] if c["cold"] else c.get("cold_seconds") for c in compilations]
    return f"unknown: {REMEDY}" if None in seconds else f"{significant(sum(seconds))} s"


def _gates(findings: Findings) -> Table:
    rows = [
        [Text(gate.name), Text("", word=_verdict(gate)), Text(gate.detail)] for gate in findings.results.gates
    ]
    rows.append([Text("selftest"), Text(""), Text(findings.proof.selftest)])
    return Table("", ("check", "verdict", "detail"), rows, left=3)


def _verdict(gate: Gate) -> str:
    if gate.passed is None:
        return "does not apply"
    return "passed" if gate.passed else "warning" if gate.warning else "FAILED"
