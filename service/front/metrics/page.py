"""Write the table of metrics of docs/observability.md: `python -m service.front.metrics.page`."""

from __future__ import annotations

import re
from pathlib import Path

from service.front.metrics.catalogue import CATALOGUE, MetricSpec, Start

PAGE = Path(__file__).parents[3] / "docs" / "observability.md"
HEADS = ("name", "type", "labels", "unit", "meaning", "absent")

ABSENT: dict[Start, str] = {
    "always": "never",
    "timings": "instrumentation turned down",
    "dispatch": "on a CPU without samples",
    "cpu": "on CUDA, until measured; on a CPU without samples",
    "sampled": "on CUDA; on a CPU without samples",
    "cuda": "on a CPU",
    "merged": "where requests are not merged",
    "once measured": "until measured",
}


def page(text: str) -> str:
    """`text` with the table of metrics made anew."""
    rows = [HEADS, ("---",) * len(HEADS), *map(_line, CATALOGUE)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
    head, comment, rest = text.partition("<!-- metrics -->\n\n")
    return head + comment + table + re.sub(r"^([|].*\n)+", "", rest)


def _line(row: MetricSpec) -> tuple[str, ...]:
    labels = ", ".join(row.labels) or "–"
    absent = "until known" if row.kind == "info" else ABSENT[row.start]
    return f"`{row.name}`", row.kind, labels, row.unit or "–", row.help, absent


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
