"""The answer: one row per batch size that a person reads in ten seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dashboards.theme import PART_COLOURS
from loadtests.plan.cells import BASELINE
from loadtests.report import wording
from loadtests.report.findings import Findings
from loadtests.report.formatting import colour, milliseconds, span, times
from loadtests.report.page import Table, Text, lines
from loadtests.report.summaries import Summary, Verdict
from service.modes import MODES
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import Comparison


def answer(verdicts: Sequence[Verdict], findings: Findings) -> Table:
    """One row per group: what to ship, how much faster it is and how sure that is, where the time goes, and
    when it has paid back.
    """
    plain = verdicts[0].plain.cell.mode if verdicts else PLAIN
    heads = (
        "batch",
        "ship",
        f"against {plain} (95 %)",
        "verdict",
        *([] if plain == BASELINE else [f"against {BASELINE} (95 %)"]),
        f"time per request, {plain} → this mode",
        "requests that pay back compiling",
    )
    found = [one.shipped.against_plain for one in verdicts if one.shipped]
    most = max((one.speedup.high for one in found if one), default=1.0)
    alike = {wording.conditions(one.group) for one in verdicts}
    title = f"Per request: {alike.pop()}" if len(alike) == 1 else ""
    beside = "sync wait (violet)" if findings.results.device == "cuda" else "kernel (green)"
    order = f"from the left queue (grey), dispatch (pink), {beside}, other (beige)"
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
    under = [wording.runs_as(shipped)]
    if name not in shown and (mode := MODES.get(name)):
        under.append(mode.effect(findings.results.device).in_pytorch(mode.grad_mode))
        shown.add(name)
    if shipped.disturbed or plain.disturbed:
        under.append("disturbed: the engine was preempted while this was measured")
    flag = Text(f"--modes {name}", under=lines(*under), colour=colour(name))
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
