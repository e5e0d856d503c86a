"""`report.html` (one file, offline), `report.md`, and the CSV tables, written from a results folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtests.plan.slo import Slo
from loadtests.report import plots_batches, plots_index, plots_modes, plots_parts, plots_time
from loadtests.report.advice_file import write_advice
from loadtests.report.csv_tables import write_tables
from loadtests.report.headline import headline
from loadtests.report.load import plots as plots_load
from loadtests.report.load.csv_files import write_load
from loadtests.report.page import TEMPLATES, embedded, template, written_page
from loadtests.report.peers_section import comparable
from loadtests.report.plotting import Plot
from loadtests.report.results import read_results
from loadtests.report.terminal import print_findings, print_table
from loadtests.report.verdict import Findings
from loadtests.report.view import view
from loadtests.run.validation import write_validation

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"

__all__ = ["headline", "make_report", "print_findings", "print_table", "write_report"]


def make_report(folder: Path | str, peers: Path | None = None, slo: Slo | None = None) -> dict[str, Any]:
    """Write the report's files into `folder`; returns the headline.

    These are `report.html`, `report.md`, `cells.csv`, `summary.csv` and `advice.json`.

    With open-loop cells also `load.csv` and `knees.csv`, judged by `slo` in place of the plan's. `peers` is a
    folder of `launchbound peers`, whose comparison with other runtimes the report then shows.
    `validation.json` is written again too: its gates are checked anew, from rows and scrapes. Raises
    RowsError where the folder holds no results, or none that succeeded, and PeersError where `peers` cannot
    be read or is of another model or processor.
    """
    return write_report(Findings(read_results(folder), slo), peers)


def write_report(findings: Findings, peers: Path | None = None) -> dict[str, Any]:
    """As `make_report`, of results that have been read already."""
    compared = None if peers is None else comparable(peers, findings.results.run)
    write_tables(findings)
    write_load(findings.load)
    write_advice(findings)
    write_validation(findings.results.folder, findings.results.gates)
    context = view(findings, compared)
    drawn = [
        {"id": plot.id, "facts": plot.facts, "height": plot.figure.layout.height, "json": embedded(plot)}
        for plot in plots(findings)
    ]
    page = written_page(TEMPLATES, REPORT_FILE, context, drawn)
    (findings.results.folder / REPORT_FILE).write_text(page, encoding="utf-8")
    text = template(TEMPLATES, MARKDOWN_FILE).render(**context)
    (findings.results.folder / MARKDOWN_FILE).write_text(text, encoding="utf-8")
    return headline(findings)


def plots(findings: Findings) -> Iterator[Plot]:
    """All plots that have data, in the page's order."""
    for plot in (
        plots_modes.speedups,
        plots_parts.parts,
        plots_modes.latency,
        plots_modes.throughput,
        plots_index.index_map,
        plots_batches.trade_off,
        plots_load.goodput,
        plots_load.saturation,
        plots_load.concurrency,
        plots_time.timeline,
    ):
        if made := plot(findings):
            yield made
