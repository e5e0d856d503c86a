"""The answer: one row per batch size that a person reads in ten seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dashboards.theme import PART_COLOURS
from loadtests.plan.cells import BASELINE, Group
from loadtests.report import wording
from loadtests.report.findings import PLAIN, Findings
from loadtests.report.formatting import colour, level, milliseconds, span, times
from loadtests.report.page import Table, Text, lines
from loadtests.report.summaries import Summary, Verdict
from service.statistics.choice import Comparison


def answer(verdicts: Sequence[Verdict], findings: Findings) -> Table:
    """One row per group: the mode to ship, its speed-up, where the time goes, and when it has paid back."""
    counts = {s.comparison.speedup.samples for v in verdicts for s in v.summaries if s.comparison}
    rounds = " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "no paired"
    heads = (
        "batch",
        "mode to ship",
        f"against {BASELINE} ({level(findings.confidence)})",
        f"against {PLAIN} ({level(findings.confidence)})",
        f"time per request, {BASELINE} → mode to ship",
        f"{BASELINE}'s decode",
        "requests to pay back",
    )
    note = (
        f"Speed-ups are paired within rounds: {rounds}, each in its own random order. They hold for this "
        "sweep; those of other hours scatter by more."
    )
    found = [one.shipped.comparison for one in verdicts if one.shipped]
    most = max((one.speedup.high for one in found if one), default=1.0)
    alike = {conditions(one.group) for one in verdicts}
    title = f"Per request: {alike.pop()}" if len(alike) == 1 else ""
    rows = [_answer_row(one, findings, most, "" if title else conditions(one.group)) for one in verdicts]
    return Table(title, heads, rows, note, 2)


def _answer_row(verdict: Verdict, findings: Findings, most: float, where: str) -> list[Text]:
    shipped, baseline = verdict.shipped, verdict.baseline
    batch = Text(str(verdict.batch_size), under=lines(where))
    decode = Text(wording.limit(baseline.decode) or "unknown", under=lines(wording.headroom(verdict)))
    if shipped is None:
        return [batch, Text("undecided", under=(wording.gain(verdict),)), *[Text("–")] * 3, decode, Text("–")]
    under = [wording.stands_for(shipped, findings.results.device), wording.tie(verdict, findings.confidence)]
    if shipped.runs_as:
        under.append(findings.results.run.mode(shipped.cell.mode).get("reason"))
    if shipped.disturbed or baseline.disturbed:
        under.append("disturbed: the engine was preempted while this was measured")
    mode = Text(wording.short_name(shipped), under=lines(*under), colour=colour(shipped.cell.mode))
    if shipped.comparison is None:
        gain = Text(f"no mode is detectably faster than {BASELINE}")
    else:
        change, chart = f"{latency(baseline)} → {latency(shipped)}", _whiskers(shipped.comparison, most)
        gain = replace(compared(shipped.comparison), under=(change,), chart=chart)
    plain = compared(None if shipped.cell.mode == BASELINE else shipped.against_plain)
    drawn = [baseline] if shipped is baseline else [baseline, shipped]
    # On a GPU kernels run beside dispatch, and are in no sum.
    without = "kernel" if findings.results.device == "cuda" else "sync_wait"
    parts = Text("", under=tuple(wording.saved(verdict)), chart=_bars(drawn, without))
    back = wording.paid_back(shipped) or ["nothing is compiled"]
    return [batch, mode, gain, plain, parts, decode, Text(back[0], under=tuple(back[1:]))]


def conditions(group: Group) -> str:
    """What else a group's cells have in common, besides their batch size."""
    _, prompts, tokens, concurrency, *_ = group
    return f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}"


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
    """The typical round's median."""
    return milliseconds(summary.latency.value)


def compared(comparison: Comparison | None, with_word: bool = True) -> Text:
    """A speed-up with its interval and verdict; a dash for what others are compared with."""
    if comparison is None:
        return Text("–")
    word = comparison.word if with_word else ""
    return Text(times(comparison.speedup.value), span(comparison.speedup), word=word)
