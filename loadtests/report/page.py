"""How pages are written: templates, figures as JSON, and one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtests.report.plotting import Plot

TEMPLATES = Path(__file__).with_name("templates")
"""Style and drawing, which all pages include."""

PLOTLY_BUNDLE = Path(__file__).with_name("vendor") / "plotly-basic.min.js"
"""Scatter, bar and pie traces only: a quarter of all of plotly.js. See vendor/README.md."""


def written_page(
    folder: Path | Sequence[Path], name: str, context: Mapping[str, Any], plots: Sequence[Mapping[str, Any]]
) -> str:
    """The template `name` with `context`, its plots and the code that draws them."""
    bundle = PLOTLY_BUNDLE.read_text(encoding="utf-8")
    return str(template(folder, name).render(**context, plots=plots, plotly_js=bundle))


def embedded(plot: Plot) -> str:
    """A figure as JSON that is safe inside a script element."""
    figure = json.loads(plotly.io.to_json(plot.figure, validate=False))
    return json.dumps({"data": figure["data"], "layout": figure["layout"]}).replace("</", "<\\/")


def template(folder: Path | Sequence[Path], name: str) -> Any:  # noqa: ANN401 - jinja2 is untyped
    """A template of `folder`, or of several, which may include those of the report."""
    folders = [folder] if isinstance(folder, Path) else folder
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(name)
