"""The results as a terminal shows them: failed gates first, then per batch size one row per mode."""

from __future__ import annotations

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from loadtests.report import formatting, wording
from loadtests.report.auto_section import auto_runs
from loadtests.report.crossing import crossing
from loadtests.report.load.section import load_section
from loadtests.report.load.terminal import print_load
from loadtests.report.proof import proof
from loadtests.report.results import read_results
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.verdict import PLAIN, Findings

_STYLE = {"faster": "green", "slower": "red", "undecided": "yellow", "no detectable difference": "dim"}
_LEFT_OUT = ("tokens/s", "kernel share", PLAIN)
"""Columns left out where the terminal is too narrow for all."""
_ANY_WIDTH = 1000
WIDTH = 120
"""Least character columns of what is printed to a file or a pipe."""
_COLUMNS = ("mode", "ms", "tokens/s", "dispatch", "kernel", "kernel share", "speed-up (interval)", "", PLAIN)


def print_table(folder: Path | str, console: Console | None = None) -> None:
    """Print the tables and the answer of a results folder. Raises RowsError where it has no results."""
    print_findings(Findings(read_results(folder)), console or Console())


def print_findings(findings: Findings, console: Console) -> None:
    """As `print_table`, of results that have been read already."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, WIDTH, _widest(findings, console)))
    for gate in findings.results.failed_gates:
        console.print(Text(f"NOT VALID  {gate.name}: {gate.detail}", style="bold red"), soft_wrap=True)
    for gate in findings.results.gates:
        if gate.warning and gate.passed is False:
            console.print(Text(f"warning  {gate.name}: {gate.detail}", style="yellow"), soft_wrap=True)
    for sentence in proof(findings).sentences:
        console.print(Text(sentence, style="yellow"), soft_wrap=True)
    for verdict in findings.verdicts:
        console.print(table(verdict, narrow=console.width < _widest(findings, console)))
        console.print(Text(f"  → {conclusion(verdict, findings)}\n", style="bold"), soft_wrap=True)
    for one in auto_runs(findings):
        console.print(Text(one.sentence), soft_wrap=True)
    section = load_section(findings.load, findings.summaries, findings.label)
    print_load(section, console, narrow=console.width < WIDTH - 10)
    console.print(Text(wording.headline(findings), style="bold"), soft_wrap=True)
    turn = crossing(findings.crossover, findings.estimated)
    console.print(Text(f"{turn[0].upper()}{turn[1:]}."), soft_wrap=True)


def _widest(findings: Findings, console: Console) -> int:
    """Characters that the widest table needs with all its columns."""
    wide = console.options.update(width=_ANY_WIDTH)
    return max((Measurement.get(console, wide, table(v)).maximum for v in findings.verdicts), default=0)


def conclusion(verdict: Verdict, findings: Findings) -> str:
    """What to ship for this group, in one line."""
    if verdict.shipped is None:
        return f"undecided: {wording.gain(verdict)}"
    parts = [f"{wording.named(verdict.shipped, findings.results.device)}: {wording.gain(verdict)}"]
    if tie := wording.tie(verdict, findings.confidence):
        parts.append(tie.rstrip("."))
    return "; ".join(parts)


def table(verdict: Verdict, narrow: bool = False) -> Table:
    """One group as a table; latency is the typical round's median, parts are means per request, in ms.

    `narrow` leaves out _LEFT_OUT, to fit into 80 characters.
    """
    batch, prompts, tokens, concurrency, *_ = verdict.group
    table = Table(
        title=f"batch {batch} · {prompts} prompts · {tokens} new tokens · concurrency {concurrency}",
        title_justify="left",
        title_style="bold",
        caption=_footnotes(verdict, narrow),
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    columns = [column for column in _COLUMNS if not (narrow and column in _LEFT_OUT)]
    for column in columns:
        left = column in ("mode", "")
        table.add_column(
            column,
            justify="left" if left else "right",
            no_wrap=column != "",
            min_width=10 if column == "" else None,
        )
    for summary in verdict.summaries:
        row = dict(zip(_COLUMNS, _row(summary), strict=True))
        table.add_row(*(row[column] for column in columns), style="dim" if summary.cell.control else None)
    return table


def _footnotes(verdict: Verdict, narrow: bool) -> str | None:
    notes = [f"{s.runs_as} is what {s.cell.mode} runs as here" for s in verdict.modes if s.runs_as]
    if any(summary.decode.index is not None for summary in verdict.summaries):
        notes.append("dispatch and kernel of both phases" + ("" if narrow else "; kernel share of decode"))
    if any(summary.disturbed for summary in verdict.summaries):
        notes.append("* disturbed: the engine was preempted")
    return "; ".join(notes) or None


def _row(summary: Summary) -> list[Text | str]:
    comparison = summary.comparison
    parts = summary.parts
    name = f"{wording.short_name(summary)}{' (control)' if summary.cell.control else ''}"
    word = comparison.word if comparison and not summary.cell.control else None
    return [
        f"{name} *" if summary.disturbed else name,
        _milliseconds(summary.latency.value),
        formatting.significant(summary.tokens_per_second.value),
        _milliseconds(parts["dispatch"]),
        _milliseconds(parts["kernel"]),
        _kernel_share(summary),
        wording.compared(comparison),
        Text(word or "", style=_STYLE[word] if word else ""),
        wording.compared(summary.against_plain),
    ]


def _kernel_share(summary: Summary) -> str:
    decode = summary.decode
    if decode.index is None:
        return "–"
    return f"{decode.index:.2f}" + (f" ({formatting.share_span(decode.interval)})" if decode.interval else "")


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else formatting.significant(seconds * 1e3)
