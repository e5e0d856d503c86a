"""What the report shows, as plain values: the answer per batch size, and the sections with their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dashboards.theme import PART_COLOURS
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS
from loadtests.report import wording
from loadtests.report.findings import Findings
from loadtests.report.formatting import (
    capital,
    colour,
    counted,
    level,
    listed,
    microseconds,
    milliseconds,
    share_span,
    significant,
    size,
    span,
    times,
    whole,
)
from loadtests.report.load_section import load_section
from loadtests.report.page import Plot, Section, Table, Text, lines
from loadtests.report.summaries import REMEDY, PhaseMeans, Requests, Summary, Verdict
from loadtests.report.surroundings import environment, reproduce, subject
from loadtests.report.words import Words
from loadtests.run.gates import Gate
from loadtests.run.run_file import SweepRun
from loadtests.run.target import in_short
from service.modes import MODES
from service.statistics.boundedness import Roofline, attended_positions, decode_bytes, decode_flops, roofline
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import CONFIDENCE, EQUIVALENT, Comparison
from service.statistics.intervals import SERVED_SHARE, Interval
from service.workloads import FORWARD


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
        "words": results.words,
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
        yield "", "Valid run: no check of errors, parity, counts or load failed (see Validity)"
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
        _roofline_section(findings),
        _parity_section(findings),
        Section("Validity", "", [_gates(findings)]),
        Section("What this report lacks", findings.words.absent) if findings.words.absent else None,
        Section("Where it was measured", "", below=environment(run)),
        Section(
            "Measure it again",
            f"Seed {run.seed} fixes every round's order, {findings.words.seeded}. All requests are in "
            "requests.jsonl, the tables in cells.csv and summary.csv, the order that was run in run.json, "
            "the server's own counts in server_metrics/.",
            code=reproduce(run),
        ),
    ]
    return [section for section in found if section]


# The answer: one row per batch size that a person reads in ten seconds.


def answer(verdicts: Sequence[Verdict], findings: Findings) -> Table:
    """One row per group: what to ship, how much faster it is and how sure that is, where the time goes, and
    when it has paid back.
    """
    plain, timed = verdicts[0].plain.cell.mode if verdicts else PLAIN, findings.words.timed
    heads = (
        "batch",
        "ship",
        f"against {plain} (95 %)",
        "verdict",
        *([] if plain == BASELINE else [f"against {BASELINE} (95 %)"]),
        f"time per {timed}, {plain} → this mode",
        f"{timed}s that pay back compiling",
    )
    found = [one.shipped.against_plain for one in verdicts if one.shipped]
    most = max((one.speedup.high for one in found if one), default=1.0)
    alike = {wording.conditions(one.group) for one in verdicts}
    title = f"Per {timed}: {alike.pop()}" if len(alike) == 1 else ""
    beside = "sync wait (violet)" if findings.results.device == "cuda" else "kernel (green)"
    queue = "queue (grey), " if findings.words.has_tokens else ""
    order = f"from the left {queue}dispatch (pink), {beside}, other (beige)"
    bars = f"Bars: {plain} above, this mode below; {order}."
    shown = set[str]()
    rows = []
    for one in verdicts:
        where = "" if title else wording.conditions(one.group)
        rows.append(_answer_row(one, findings, most, where, shown))
    return Table(title, heads, rows, f"{bars} The dotted line is 1×.", 2)


def _answer_row(verdict: Verdict, findings: Findings, most: float, where: str, shown: set[str]) -> list[Text]:
    """`shown` are the modes whose PyTorch stands in a row above."""
    shipped, plain, choice = verdict.shipped, verdict.plain, verdict.choice
    batch = Text(str(verdict.batch_size), under=lines(where))
    if shipped is None or choice is None:
        few = Text("not resolved", under=(wording.gain(verdict),))
        return [batch, Text("–"), Text("–"), few, *[Text("–")] * (2 if plain.cell.mode == BASELINE else 3)]
    name = shipped.cell.mode
    under, code = [shipped.runs_as], ""
    if name not in shown and (mode := MODES.get(name)):
        code = findings.results.run.effect(mode).in_pytorch(mode.grad_mode)
        shown.add(name)
    if "max_autotune" in code and "max-autotune" in findings.left_out:
        under.append("max_autotune in its code is an option of its package, and not the mode max-autotune")
    if shipped.disturbed or plain.disturbed:
        under.append("disturbed: the engine was preempted while this was measured")
    flag = Text(f"--modes {name}", under=lines(*under), colour=colour(name), code=code)
    if shipped.against_plain is None:
        gain = Text("–")
    else:
        chart = _whiskers(shipped.against_plain, most)
        gain = replace(compared(shipped.against_plain, with_word=False), chart=chart)
    eager = compared(shipped.comparison, with_word=False)
    drawn = [plain] if shipped is plain else [plain, shipped]
    # On a GPU kernels run beside dispatch, and are in no sum.
    without = "kernel" if findings.results.device == "cuda" else "sync_wait"
    parts = Text("", under=tuple(wording.saved(verdict)), chart=_bars(drawn, without))
    back = wording.paid_back(shipped) or ["nothing is compiled"]
    sure = Text("", under=tuple(wording.certainty(verdict)), word=choice.state)
    beside = [] if plain.cell.mode == BASELINE else [eager]
    return [batch, flag, gain, sure, *beside, parts, Text(back[0], under=tuple(back[1:]))]


_WIDE, _HIGH = 120, 14
"""Pixels of a drawing in a cell."""


def _svg(inside: str, high: int = _HIGH) -> str:
    return (
        f'<svg class="drawing" viewBox="0 0 {_WIDE} {high}" width="{_WIDE}" height="{high}" '
        f'aria-hidden="true">{inside}</svg>'
    )


def _whiskers(found: Comparison, most: float) -> str:
    """The speed-up as a dot with whiskers, on a scale from 0 to `most`, with a line at 1."""
    ratio, scale = found.speedup, (_WIDE - 8) / max(most, 1.0)
    low, value, high, one = (4 + scale * end for end in (ratio.low, ratio.value, ratio.high, 1.0))
    y = _HIGH / 2
    return _svg(
        f'<line x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{_HIGH}" class="one"/>'
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" class="whisker"/>'
        f'<circle cx="{value:.1f}" cy="{y}" r="4"/>'
    )


def _bars(summaries: Sequence[Summary], without: str) -> str:
    """The mean parts of a request, but `without` one, as one bar per cell, on one scale."""
    slowest = max(summary.mean_seconds for summary in summaries)
    drawn = ""
    for row, summary in enumerate(summaries):
        left = 0.0
        for part, seconds in summary.parts.items():
            if part != without and seconds:
                name, width = part.replace("_", " "), _WIDE * seconds / slowest
                drawn += (
                    f'<rect x="{left:.1f}" y="{row * 10}" width="{width:.1f}" height="8" '
                    f'fill="{PART_COLOURS[name]}"><title>{name} {milliseconds(seconds)}</title></rect>'
                )
                left += width
    return _svg(drawn, 10 * len(summaries))


def latency(summary: Summary) -> str:
    return milliseconds(summary.latency.value)


def compared(comparison: Comparison | None, with_word: bool = True) -> Text:
    """A speed-up with its interval and verdict; a dash for what others are compared with."""
    if comparison is None:
        return Text("–")
    word = comparison.word if with_word else ""
    return Text(times(comparison.speedup.value), span(comparison.speedup), word=word)


# Each mode of a group.

MANY_FAULTS = 10
"""Page faults per request that are worth a column."""


def _note_on_modes(findings: Findings) -> str:
    estimated = (
        " Dispatch is estimated, its interval in brackets; what dispatch has less, kernel has more."
        if findings.estimated
        else ""
    )
    words = findings.words
    parts = (
        "Parts are means per request; with “outside” (HTTP and the client) they add up to the mean latency"
        if words.has_tokens
        else "Parts are means per call, and add up to its mean time; on CUDA “other” lies between two calls"
    )
    return (
        f"{capital(words.latency)} is the typical round's median, in ms, with its 95 % "
        f"interval. Speed-ups are paired within rounds. {parts}, and “mean − typical” is what that lies "
        f"above the {words.latency} shown. The kernel share is kernel / (kernel + dispatch).{estimated}"
    )


def mode_tables(verdict: Verdict, findings: Findings) -> Iterator[Table]:
    """Latency and speed-ups of every cell of a group, and the parts of their time."""
    plain, noise, words = verdict.plain.cell.mode, verdict.noise, findings.words
    control = f" {BASELINE} against itself: {wording.ratio(noise)}." if noise else ""
    heads: tuple[str, ...] = (
        "mode", words.latency, f"against {plain} (95 %)",
        *([] if plain == BASELINE else [f"against {BASELINE} (95 %)"]),
        *(["first token"] if words.has_tokens else []),
        f"{words.unit}/s", f"{words.timed}s to pay back, this start", "from an empty cache",
    )  # fmt: skip
    rows = [[_mode(one), *_speed(one, plain)] for one in verdict.summaries]
    yield Table(
        f"Batch {verdict.batch_size}: {wording.conditions(verdict.group)}", heads, rows, control.strip()
    )
    beside = "sync wait" if findings.results.device == "cuda" else "kernel"
    phases = [
        f"{phase} {part}"
        for phase in findings.results.workload.phases
        for part in ("dispatch", beside, "kernel share")
    ]
    faults = [one.minor_faults for one in verdict.summaries]
    shown = any((count or 0.0) >= MANY_FAULTS for count in faults)
    around = (["queue"], ["outside"]) if words.has_tokens else ([], [])
    heads = ("mode", *around[0], *phases, "other", *around[1], f"mean {words.latency}", "mean − typical")
    rows = [[_mode(one), *_parts(one, beside)] for one in verdict.summaries]
    if shown:
        heads += ("page faults",)
        rows = [[*row, Text(whole(count))] for row, count in zip(rows, faults, strict=True)]
    yield Table("", heads, rows, f"{_work(verdict.baseline)}.")


def _work(summary: Summary) -> str:
    """What a request of this group asks for: calls, or prompt, padded prompt and attended tokens."""
    if summary.cell.calls is not None:
        return f"Calls per request {summary.cell.calls}"
    prompt = None if summary.prompt_tokens is None else summary.prompt_tokens / summary.cell.batch_size
    return (
        f"Prompt tokens per sequence {whole(prompt)}, padded to {whole(summary.padded_prompt_tokens)}; "
        f"attended cache positions in the last step {whole(summary.attended_tokens)}"
    )


def _mode(summary: Summary) -> Text:
    again = " again (control)" if summary.cell.control else ""
    under = lines(summary.runs_as, "disturbed" if summary.disturbed else None)
    return Text(summary.cell.mode + again, under=under, colour=colour(summary.cell.mode))


def _speed(summary: Summary, plain: str) -> list[Text]:
    back, control, token = summary.payback, summary.cell.control, summary.first_token
    cache = f"{back.cost.cache} cache" if back.cost and not control else None
    return [
        Text(latency(summary), span(summary.latency, 1e3)),
        compared(summary.against_plain),
        *([] if plain == BASELINE else [compared(summary.comparison, with_word=not control)]),
        *([Text(milliseconds(token.value if token else None))] if summary.words.has_tokens else []),
        Text(significant(summary.throughput.value)),
        Text("" if control else _requests(back.requests), under=lines(cache)),
        Text("" if control else _requests(back.cold_requests)),
    ]


def _requests(requests: Requests) -> str:
    if requests == "nothing to pay back":
        return "–"
    return requests if isinstance(requests, str) else counted(*requests)


def _parts(summary: Summary, beside: str) -> list[Text]:
    sign, has_around = "+" if summary.skew_seconds >= 0 else "−", summary.words.has_tokens
    return [
        *([Text(milliseconds(summary.parts["queue"]))] if has_around else []),
        *(text for phase in summary.phases for text in _phase(phase, beside)),
        Text(milliseconds(summary.parts["other"])),
        *([Text(milliseconds(summary.outside_seconds))] if has_around else []),
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
    """How the modes' spread changes with the batch; dispatch of a step at the smallest; graph breaks."""
    if not findings.main:
        return "", []
    smallest, largest = findings.main[0], findings.main[-1]
    sentences = [wording.crossing(findings)]
    if largest is not smallest:
        ends = [(end, _spread(end)) for end in (smallest, largest)]
        verb = "converge" if ends[1][1] < ends[0][1] else "do NOT converge"
        reach = ", ".join(f"{times(spread)} at batch {end.batch_size}" for end, spread in ends)
        sentences.append(f"The modes {verb} as the batch grows: slowest over fastest {reach}.")
    steps = {one.cell.mode: one.main.step_dispatch_seconds for one in smallest.modes}
    known = {mode: seconds for mode, seconds in steps.items() if seconds is not None}
    what = f"dispatch of a {findings.results.workload.step} at batch {smallest.batch_size}"
    rows = [[*map(Text, [what, *map(microseconds, known.values())])]]
    statuses = [findings.results.run.mode(mode) for mode in steps]
    broken = [one for one in statuses if one.get("graph_breaks")]
    breaks = [[*map(Text, (one["mode"], str(one["graph_breaks"]), one["reason"] or "–"))] for one in broken]
    tables = [Table("", ["", *known], rows)] if known else []
    tables += [Table("", ("mode", "graph breaks", "where"), breaks, left=3)] if breaks else []
    return " ".join(sentences), tables


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
        f"{capital(findings.words.latency_per)} with kernels as they are or fused, launched one by one by "
        f"the host or replayed as one CUDA graph: {listed(list(DESIGN))}. Ratios are paired within rounds "
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


# How near decode comes to the rates of the device: what a step must move and compute, in its kernel time.

ROOFLINE = (
    "mode", "batch", "bytes per step", "kernel per step", "attained", "of bandwidth (interval)",
    "of arithmetic (interval)", "nearer roof",
)  # fmt: skip

_ENDS = ("wall_seconds", "dispatch_low_seconds", "dispatch_high_seconds")


def _roofline_section(findings: Findings) -> Section | None:
    """One row per mode and main batch size, per decode step; without rows the note says why.

    None of a module, whose bytes and arithmetic nobody knows.
    """
    engine, run = findings.results.run.engine, findings.results.run
    if run.workload is FORWARD:
        return None
    rows, note = list[list[Text]](), "Unknown: kernel time is not measured here."
    if not engine.get("memory_bandwidth") or not engine.get("step_bytes"):
        note = "Unknown: the service of this run did not record its memory's bandwidth; sweep again."
    else:
        rate = _roof(engine["memory_bandwidth"], run)
        modes = [one for verdict in findings.main for one in verdict.modes]
        rows = [row for one in modes if (row := _roofline_row(one, engine, rate)) is not None]
    if rows:
        note = " ".join(_sentences(engine, rate, findings.estimated))
    return Section("Roofline of decode", note, [Table("", ROOFLINE, rows)] if rows else [])


def _roof(bandwidth: dict[str, Any], run: SweepRun) -> float:
    """Bytes per second: the engine's, or where memory is read, a round's canary that read it faster.

    The engine reads once, after warm-up; a roof below what was reached elsewhere in the run would be none.
    """
    engine = float(bandwidth["bytes_per_second"])
    if bandwidth["kind"] != "read":
        return engine
    return max([engine, *(one.canary_bytes_per_second or 0.0 for one in run.machine_by_round)])


def _roofline_row(summary: Summary, engine: dict[str, Any], rate: float) -> list[Text] | None:
    """None where the cell's kernel time or prompt is not known."""
    steps, kernel = summary.main.steps, _kernel_seconds(summary)
    if not steps or kernel is None or summary.prompt_tokens is None:
        return None
    batch = summary.cell.batch_size
    positions = attended_positions(summary.prompt_tokens / batch, steps)
    moved = decode_bytes(engine["step_bytes"], batch, positions)
    per_step = Interval(kernel.value / steps, kernel.low / steps, kernel.high / steps, kernel.samples)
    found, computed = roofline(moved, per_step, rate), None
    if found is None:
        return None
    if engine.get("matrix_rate") and engine.get("step_flops"):
        flops = decode_flops(engine["step_flops"], batch, positions)
        computed = roofline(flops, per_step, engine["matrix_rate"]["flops_per_second"])
    # Both shares have the same kernel time, so which is larger does not depend on its interval.
    nearer = computed and ("memory" if found.share.value > computed.share.value else "arithmetic")
    return [
        Text(summary.cell.mode, colour=colour(summary.cell.mode)),
        Text(str(batch)),
        Text(size(moved)),
        Text(microseconds(per_step.value)),
        Text(_gigabytes(found.attained.value)),
        _of_roof(found),
        _of_roof(computed) if computed else Text("unknown"),
        Text(nearer or "unknown"),
    ]


def _of_roof(found: Roofline) -> Text:
    return Text(f"{significant(100 * found.share.value)} %", span(found.share, 100))


def _kernel_seconds(summary: Summary) -> Interval | None:
    """Kernel seconds of decode per request; an estimated dispatch leaves it an interval."""
    kernel = summary.main.kernel_seconds
    if kernel is None:
        return None
    low = high = kernel
    wall, least, most = (getattr(summary.main, name) for name in _ENDS)
    if summary.estimated and None not in (wall, least, most):
        low, high = wall - most, wall - least
    return Interval(kernel, max(0.0, low), max(0.0, high), summary.requests)


def _sentences(engine: dict[str, Any], rate: float, estimated: bool) -> Iterator[str]:
    bandwidth, matrices = engine["memory_bandwidth"], engine.get("matrix_rate")
    how = "copied (bytes read and written)" if bandwidth["kind"] == "copy" else "read by the engine's threads"
    if rate > bandwidth["bytes_per_second"]:
        how = f"read by the canary in its fastest round ({_gigabytes(bandwidth['bytes_per_second'])} {how})"
    yield (
        "The bytes that a decode step must move (weights once, keys and values in use, what enters and "
        f"leaves matrix products) in its kernel time, against {_gigabytes(rate)}, {how}, over a buffer of "
        f"{size(bandwidth['buffer_bytes'])}, about as large as the weights."
    )
    if matrices:
        yield (
            "Its arithmetic (matrix products and attention) against "
            f"{significant(matrices['flops_per_second'] / 1e9)} GFLOP/s, the rate of a product of two "
            f"matrices of {matrices['size']} × {matrices['size']}."
        )
    if estimated:
        yield "On a CPU kernel time is an estimate by samples, whose interval the shares have."
    yield "Two low shares: something else bounds the kernels, as how many there are, or how small."


def _gigabytes(rate: float) -> str:
    return f"{significant(rate / 1e9)} GB/s"


# Parity, and whether the sweep is valid.


def _parity_section(findings: Findings) -> Section:
    run, words = findings.results.run, findings.words
    note = (
        f"At warm-up every mode {words.parity} beside {BASELINE}. Cold start is what its "
        "compilations take with an empty compile cache."
    )
    heads = (
        "mode", "parity", words.difference, *(["greedy tokens"] if words.has_tokens else []), "warm-up",
        "cache", "compiled", "cold start", "what this mode removes",
    )  # fmt: skip
    alone = [one["mode"] for one in run.modes if run.workload is FORWARD and one["state"] == "failed"]
    rows = [_status(mode, run.mode(mode), words) for mode in dict.fromkeys([*run.plan.modes, *alone])]
    return Section("Parity and warm-up", note, [Table("", heads, rows, left=2)])


def _status(mode: str, status: dict[str, Any], words: Words) -> list[Text]:
    effective, warmup = status.get("effective") or "unknown", status.get("warmup_seconds")
    under = () if effective == mode else (f"as {effective}: {status.get('reason') or ''}",)
    if status.get("state") == "failed":
        under = (f"failed, and was not measured: {in_short(status)}",)
    seconds = [c["seconds"] for c in status.get("compilations") or []] or status.get("compile_seconds")
    again = f", recompiled {status['recompiles']} times" if status.get("recompiles") else ""
    texts = [
        *_parity(status.get("parity"))[: 3 if words.has_tokens else 2],
        f"{significant(warmup)} s" if warmup else "–",
        status.get("cache") or "–",
        f"{len(seconds)} in {significant(sum(seconds))} s{again}" if seconds else "–",
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
