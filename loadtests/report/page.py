"""How pages are written: sections, figures as JSON, and one file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from loadtests.report.tables import Table, as_markdown

TEMPLATES = Path(__file__).with_name("templates")
"""Style, drawing and the macros of tables and sections, which all pages use."""

PLOTLY_BUNDLE = Path(__file__).with_name("vendor") / "plotly-basic.min.js"
"""Scatter, bar and pie traces only: a quarter of all of plotly.js. See vendor/README.md."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure with its title and caption; `half`: as wide as half of the page, where there is room."""

    id: str
    title: str
    caption: str
    figure: go.Figure
    half: bool = False
    least_width: int = 300

    @property
    def height(self) -> int:
        """In pixels."""
        return int(self.figure.layout.height)

    @property
    def json(self) -> str:
        """The figure as JSON that is safe inside a script element."""
        figure = json.loads(plotly.io.to_json(self.figure, validate=False))
        return json.dumps({"data": figure["data"], "layout": figure["layout"]}).replace("</", "<\\/")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: a note, tables, terms with their texts, commands, and plots, which only HTML has."""

    title: str
    note: str = ""
    tables: Sequence[Table] = ()
    below: Sequence[tuple[str, str]] = ()
    code: Sequence[str] = ()
    plots: Sequence[Plot] = ()


def write_page(
    out: Path, name: str, context: Mapping[str, Any], templates: Path | Sequence[Path] = TEMPLATES
) -> None:
    """Write the page `name` and its Markdown into `out`, from their templates and `context`."""
    markdown = name.replace(".html", ".md")
    bundle = PLOTLY_BUNDLE.read_text(encoding="utf-8")
    (out / name).write_text(_template(templates, name).render(**context, plotly_js=bundle), encoding="utf-8")
    (out / markdown).write_text(_template(templates, markdown).render(**context), encoding="utf-8")


def _template(folder: Path | Sequence[Path], name: str) -> Any:  # noqa: ANN401 - jinja2 is untyped
    """A template of `folder`, or of several, which may use those of the report."""
    folders = [folder] if isinstance(folder, Path) else folder
    environment = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = as_markdown
    return environment.get_template(name)
