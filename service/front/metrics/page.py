"""Write the table of metrics of docs/observability.md by the catalogue, or with --check fail if it is old.

`python -m service.front.metrics.page --write | --check`; exit code 1 if it is not current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
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


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m service.front.metrics.page", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--write", action="store_true", help="write docs/observability.md")
    what.add_argument("--check", action="store_true", help="write nothing; fail where it is not current")
    written = PAGE.read_text(encoding="utf-8")
    current = page(written)
    if parser.parse_args(arguments).write:
        PAGE.write_text(current, encoding="utf-8")
    elif written != current:
        print(f"not current: {PAGE.name}; run: python -m service.front.metrics.page --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
