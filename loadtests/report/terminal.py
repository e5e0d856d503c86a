"""The results as a terminal shows them: failed gates first, the report's tables, then its sentences."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text as Styled

from loadtests.report import wording
from loadtests.report.findings import Findings
from loadtests.report.load_section import load_section
from loadtests.report.page import print_table
from loadtests.report.sections import mode_tables
from loadtests.report.summaries import Verdict

LEFT_OUT = {"first token", "requests to pay back, this start", "from an empty cache"}
"""Columns that a narrow terminal has no room for."""


def print_findings(findings: Findings, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Styled(text, style=style), soft_wrap=True)

    for gate in findings.results.failed_gates:
        say(f"NOT VALID  {gate.name}: {gate.detail}", "bold red")
    for gate in findings.results.warnings:
        say(f"warning  {gate.name}: {gate.detail}", "yellow")
    for verdict in findings.verdicts:
        print_table(next(mode_tables(verdict, findings)), console, LEFT_OUT)
        say(f"  → {_conclusion(verdict)}\n", "bold")
    if section := load_section(findings.load):
        for table in section.tables:
            if table.title:  # without one it has details of the table before it
                print_table(table, console)
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
