"""The results as a terminal shows them: failed gates first, one row per mode and batch size, then load."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text as Styled

from loadtests.plan.cells import BASELINE
from loadtests.report import wording
from loadtests.report.answer import compared
from loadtests.report.findings import Findings
from loadtests.report.formatting import significant
from loadtests.report.load_section import load_section
from loadtests.report.page import NARROW, WIDTH, Table, Text, as_rich
from loadtests.report.sections import kernel_share
from loadtests.report.summaries import Summary, Verdict

HEADS = ("mode", "ms", "tokens/s", "dispatch", "kernel", "kernel share")

LEFT_OUT = {"tokens/s", "kernel share", f"against {BASELINE}"}
"""Columns that a narrow terminal has no room for."""


def print_findings(findings: Findings, console: Console) -> None:
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, WIDTH))
    left_out = LEFT_OUT if console.width < NARROW else ()

    def say(text: str, style: str = "") -> None:
        console.print(Styled(text, style=style), soft_wrap=True)

    for gate in findings.results.failed_gates:
        say(f"NOT VALID  {gate.name}: {gate.detail}", "bold red")
    for gate in findings.results.warnings:
        say(f"warning  {gate.name}: {gate.detail}", "yellow")
    for verdict in findings.verdicts:
        console.print(as_rich(_table(verdict), left_out))
        say(f"  → {_conclusion(verdict)}\n", "bold")
    if section := load_section(findings.load):
        for table in section.tables:
            if table.title:  # without one it has details of the table before it
                console.print(as_rich(table, left_out))
        say(f"{section.note}\n")
    say(wording.headline(findings), "bold")
    for _, sentence in wording.reasons(findings):
        say(sentence)
    say(wording.crossing(findings.crossover))


def _conclusion(verdict: Verdict) -> str:
    if verdict.choice is None:
        return f"not resolved: {wording.gain(verdict)}"
    found = f"{verdict.choice.state}: {verdict.choice.ship}, {wording.gain(verdict)}"
    return "; ".join([found, *wording.certainty(verdict)])


def _table(verdict: Verdict) -> Table:
    """One group; latency is the typical round's median, parts are means per request, in ms."""
    title = f"batch {verdict.batch_size}: {wording.conditions(verdict.group)}"
    notes = [f"{s.runs_as} is what {s.cell.mode} runs as here" for s in verdict.modes if s.runs_as]
    notes.append("dispatch and kernel of both phases, kernel share of decode")
    if any(summary.disturbed for summary in verdict.summaries):
        notes.append("* disturbed: the engine was preempted")
    heads = (*HEADS, f"against {verdict.plain.cell.mode}", f"against {BASELINE}")
    return Table(title, heads, [_row(summary) for summary in verdict.summaries], "; ".join(notes))


def _row(summary: Summary) -> list[Text]:
    control = summary.cell.control
    name = f"{summary.cell.mode}{' (control)' if control else ''}"
    return [
        Text(f"{name} *" if summary.disturbed else name),
        _milliseconds(summary.latency.value),
        Text(significant(summary.tokens_per_second.value)),
        _milliseconds(summary.parts["dispatch"]),
        _milliseconds(summary.parts["kernel"]),
        kernel_share(summary.decode),
        compared(summary.against_plain),
        compared(summary.comparison, with_word=False),
    ]


def _milliseconds(seconds: float | None) -> Text:
    return Text("–" if seconds is None else significant(seconds * 1e3))
