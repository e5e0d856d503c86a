"""`report.html` (one file, offline), `report.md`, and the CSV tables, written from a results folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtests.report import formatting, plots_index, plots_modes, plots_parts
from loadtests.report.csv_tables import write_tables
from loadtests.report.plotting import Plot
from loadtests.report.results import read_results
from loadtests.report.terminal import print_table
from loadtests.report.verdict import Findings
from loadtests.report.view import view
from service.statistics.boundedness import bound

REPORT_FILE = "report.html"
MARKDOWN_FILE = "report.md"
TEMPLATES = Path(__file__).with_name("templates")
PLOTLY_BUNDLE = Path(__file__).with_name("vendor") / "plotly-basic.min.js"
"""Scatter, bar and pie traces only: a quarter of all of plotly.js. See vendor/README.md."""

__all__ = ["headline", "make_report", "print_table"]


def make_report(folder: Path | str) -> dict[str, Any]:
    """Write `report.html`, `report.md`, `cells.csv` and `summary.csv` into `folder`; returns the headline.

    Raises RowsError where the folder holds no results, or none that succeeded.
    """
    findings = Findings(read_results(folder))
    write_tables(findings)
    context = view(findings)
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
        plots_modes.latency,
        plots_modes.throughput,
        plots_parts.parts,
        plots_modes.speedups,
        plots_index.index_map,
        plots_parts.floors,
        plots_modes.knee,
        plots_modes.saturation,
        plots_parts.timeline,
    ):
        if made := plot(findings):
            yield made


def embedded(plot: Plot) -> str:
    """A figure as JSON that is safe inside a script element."""
    figure = json.loads(plotly.io.to_json(plot.figure, validate=False))
    return json.dumps({"data": figure["data"], "layout": figure["layout"]}).replace("</", "<\\/")


def headline(findings: Findings) -> dict[str, Any]:
    """The answer for programs: a sentence, its validity, and the choice per batch size."""
    return {
        "text": formatting.headline(findings),
        "valid": not findings.results.failed_gates,
        "failed_gates": [gate.name for gate in findings.results.failed_gates],
        "crossover_batch": findings.crossover.batch if findings.crossover.where == "at" else None,
        "batches": [
            {
                "batch_size": verdict.batch_size,
                "ship": verdict.choice.ship if verdict.choice else None,
                "effective": shipped.effective if shipped else None,
                "fastest": verdict.choice.fastest if verdict.choice else None,
                "speedup": msgspec.to_builtins(comparison.speedup) if comparison else None,
                "word": comparison.word if comparison else None,
                "bound": bound(verdict.baseline.index),
                "device_bound_index": verdict.baseline.index,
                "payback_requests": shipped.payback if shipped and isinstance(shipped.payback, int) else None,
            }
            for verdict in findings.main
            for shipped in [verdict.shipped]
            for comparison in [shipped.comparison if shipped else None]
        ],
    }


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
