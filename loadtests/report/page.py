"""What pages consist of (tables, plots, sections), and how they are written: HTML, Markdown, terminal."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.text import Text as Styled

WIDTH = 150
"""Character columns of a table that is printed to a file or a pipe; a narrower terminal lacks some."""

STYLE = {
    "faster": "green", "slower": "red", "undecided": "yellow", "no detectable difference": "dim",
    "equivalent": "dim", "not resolved": "yellow",
}  # fmt: skip
"""Of a verdict on the terminal."""


@dataclass(frozen=True, slots=True)
class Text:
    """A cell: its text, the `span` of its interval, lines `under` it, a verdict, the colour of the dot before
    it, what only the page has, an SVG, and `code` to copy, which a terminal shows below the table.
    """

    text: str
    span: str = ""
    under: tuple[str, ...] = ()
    word: str = ""
    colour: str = ""
    chart: str = ""
    code: str = ""

    def __str__(self) -> str:
        value = f"{self.text} ({self.span})" if self.span else self.text
        return " ".join(filter(None, ["; ".join(filter(None, [value, *self.under])), self.word]))


def lines(*texts: str | None) -> tuple[str, ...]:
    """Those of `texts` that say something."""
    return tuple(text for text in texts if text)


@dataclass(frozen=True, slots=True)
class Table:
    """A table; its first `left` columns are text, the others numbers."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[Text]]
    note: str = ""
    left: int = 1


def as_markdown(table: Table) -> str:
    """The table alone, without title and note."""
    lines = [table.heads, ["---"] * len(table.heads)]
    lines += [[_markdown(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _markdown(cell: Text) -> str:
    return "<br>".join([str(cell), *(f"`{line}`" for line in cell.code.splitlines())])


def print_table(table: Table, console: Console, left_out: Collection[str] = ()) -> None:
    """Print `table`, on a narrow terminal without the columns `left_out`; all but the first may wrap."""
    if not console.is_terminal:
        console = Console(file=console.file, width=max(console.width, WIDTH))
    kept = [n for n, head in enumerate(table.heads) if console.width >= WIDTH or head not in left_out]
    shown = rich_table.Table(
        title=Styled(table.title, "bold"),
        title_justify="left",
        caption=Styled(table.note, "table.caption"),
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    for number in kept:
        justify: JustifyMethod = "left" if number < table.left else "right"
        shown.add_column(Styled(table.heads[number]), justify=justify, no_wrap=number == 0)
    for row in table.rows:
        cells = [row[number] for number in kept]
        shown.add_row(*(Styled(str(cell), style=STYLE.get(cell.word, "")) for cell in cells))
    console.print(shown)
    for cell in (cell for row in table.rows for cell in row if cell.code):
        console.print(Styled(f"{cell.text} in PyTorch:\n{cell.code}\n"), soft_wrap=True)


TEMPLATES = Path(__file__).with_name("templates")
"""The page that all others extend, with the macros of tables and sections."""

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
    out: Path, name: str, context: Mapping[str, Any], templates: Path = TEMPLATES, written: str | None = None
) -> None:
    """Write the page `name` and its Markdown into `out`, as `written` where it has another name there."""
    bundle = PLOTLY_BUNDLE.read_text(encoding="utf-8")
    for suffix in (".html", ".md"):
        text = _template(templates, Path(name).with_suffix(suffix).name).render(**context, plotly_js=bundle)
        (out / Path(written or name).with_suffix(suffix).name).write_text(text, encoding="utf-8")


def _template(folder: Path, name: str) -> Any:  # noqa: ANN401 - jinja2 is untyped
    """A template of `folder`, which may use those of the report."""
    environment = Environment(
        loader=FileSystemLoader([folder, TEMPLATES]),
        autoescape=name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["markdown"] = as_markdown
    return environment.get_template(name)
