"""Tables as plain values, the same in the page, in Markdown and on the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rich import table as rich_table
from rich.box import SIMPLE_HEAD
from rich.text import Text as Styled

WIDTH = 150
"""Character columns of a table that is printed to a file or a pipe."""

NARROW = 110
"""In a narrower terminal tables leave out some columns."""

STYLE = {"faster": "green", "slower": "red", "undecided": "yellow", "no detectable difference": "dim"}
"""Of a verdict on the terminal."""


@dataclass(frozen=True, slots=True)
class Text:
    """A cell: its text, the `span` of its interval, lines `under` it, a verdict, the colour of the dot before
    it, and what only the page has, an SVG.
    """

    text: str
    span: str = ""
    under: tuple[str, ...] = ()
    word: str = ""
    colour: str = ""
    chart: str = ""

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
    lines += [[str(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_rich(table: Table, left_out: Collection[str] = (), wrapped: Collection[str] = ()) -> rich_table.Table:
    """For a terminal, without the columns `left_out`; those named in `wrapped` may be broken into lines."""
    shown = rich_table.Table(
        title=table.title or None,
        title_justify="left",
        title_style="bold",
        caption=table.note or None,
        caption_justify="left",
        box=SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    kept = [number for number, head in enumerate(table.heads) if head not in left_out]
    for number in kept:
        head = table.heads[number]
        shown.add_column(
            head, justify="left" if number < table.left else "right", no_wrap=head not in wrapped
        )
    for row in table.rows:
        cells = [row[number] for number in kept]
        shown.add_row(*(Styled(str(cell), style=STYLE.get(cell.word, "")) for cell in cells))
    return shown
