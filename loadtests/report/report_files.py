"""`report.html` (one file, offline), `report.md`, and the CSV tables, written from a results folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtests.report import plots_index, plots_load, plots_modes, plots_parts, plots_time
from loadtests.report.csv_tables import write_tables
from loadtests.report.headline import headline
from loadtests.report.peers_section import comparable
from loadtests.report.plotting import Plot
from loadtests.report.results import read_results
from loadtests.report.terminal import print_table
from loadtests.report.verdict import Findings
from loadtests.report.view import view
from loadtests.run.validation import write_validation

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TEMPLATES = Path(__file__).with_name("templates")
PLOTLY_BUNDLE = Path(__file__).with_name("vendor") / "plotly-basic.min.js"
"""Scatter, bar and pie traces only: a quarter of all of plotly.js. See vendor/README.md."""

__all__ = ["headline", "make_report", "print_table"]


def make_report(folder: Path | str, peers: Path | None = None) -> dict[str, Any]:
    """Write `report.html`, `report.md`, `cells.csv` and `summary.csv` into `folder`; returns the headline.

    `peers` is a folder of `launchbound peers`, whose comparison with other runtimes the report then shows.
    `validation.json` is written again too: its gates are checked anew, from rows and scrapes. Raises
    RowsError where the folder holds no results, or none that succeeded, and PeersError where `peers` cannot
    be read or is of another model or processor.
    """
    findings = Findings(read_results(folder))
    compared = None if peers is None else comparable(peers, findings.results.run)
    write_tables(findings)
    write_validation(findings.results.folder, findings.results.gates)
    context = view(findings, compared)
    drawn = [
        {"id": plot.id, "facts": plot.facts, "height": plot.figure.layout.height, "json": embedded(plot)}
        for plot in plots(findings)
    ]
    page = _template(REPORT_FILE).render(
        **context, plots=drawn, plotly_js=PLOTLY_BUNDLE.read_text(encoding="utf-8")
    )
    (findings.results.folder / REPORT_FILE).write_text(page, encoding="utf-8")
    text = _template(MARKDOWN_FILE).render(**context)
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
        plots_parts.floors,
        plots_load.knee,
        plots_load.saturation,
        plots_time.timeline,
    ):
        if made := plot(findings):
            yield made


def embedded(plot: Plot) -> str:
    """A figure as JSON that is safe inside a script element."""
    figure = json.loads(plotly.io.to_json(plot.figure, validate=False))
    return json.dumps({"data": figure["data"], "layout": figure["layout"]}).replace("</", "<\\/")


def _template(name: str) -> Any:  # noqa: ANN401 - jinja2's templates are untyped
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
