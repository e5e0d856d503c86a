"""`runs.html` (one file, offline), `runs.md` and `runs.json`, written from several results folders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from loadtests.report.page import embedded, template, written_page
from loadtests.side_by_side.entry import Entry, read_entries
from loadtests.side_by_side.plots import plots
from loadtests.side_by_side.precision_document import precision_document
from loadtests.side_by_side.precisions import precisions_of
from loadtests.side_by_side.repeats import repeats_of
from loadtests.side_by_side.repeats_view import repeats_document
from loadtests.side_by_side.view import groups, view

PAGE_FILE = "runs.html"
MARKDOWN_FILE = "runs.md"
DOCUMENT_FILE = "runs.json"
TEMPLATES = Path(__file__).with_name("templates")


def make_picture(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write the three files into `out`, which is created; returns what `runs.json` holds.

    Raises RowsError for a folder that holds no results.
    """
    return write_picture(read_entries(folders), out)


def write_picture(
    entries: Sequence[Entry], out: Path, absent: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """As `make_picture`, of runs that have been read; `absent` are runs without results, and why."""
    shared = groups(entries)
    precisions = precisions_of(entries, shared)
    repeats = repeats_of(entries, shared)
    context = view(entries, precisions, absent, repeats)
    out.mkdir(parents=True, exist_ok=True)
    drawn = [
        {"id": plot.id, "height": plot.figure.layout.height, "json": embedded(plot)}
        for plot in plots(entries, shared)
    ]
    (out / PAGE_FILE).write_text(written_page(TEMPLATES, PAGE_FILE, context, drawn), encoding="utf-8")
    (out / MARKDOWN_FILE).write_text(template(TEMPLATES, MARKDOWN_FILE).render(**context), encoding="utf-8")
    found = document(context, entries) | {
        "precision": precision_document(precisions),
        "repeats": repeats_document(repeats),
    }
    (out / DOCUMENT_FILE).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return found


def document(context: dict[str, Any], entries: Sequence[Entry]) -> dict[str, Any]:
    """The picture for programs; seconds are seconds, and null is what is unknown."""
    return {
        "headline": context["headline"],
        "differing": context["differing"],
        "absent": dict(context["absent"]),
        "runs": [
            {
                "letter": run["letter"],
                "label": run["label"],
                "folder": str(entry.findings.results.folder),
                "facts": run["facts"],
                "valid": entry.valid,
            }
            for run, entry in zip(context["runs"], entries, strict=True)
        ],
        "groups": [
            {
                "batch_size": card["batch"],
                "conditions": card["conditions"],
                "winner": card["winner"],
                "runs": [row["numbers"] for row in card["rows"]],
            }
            for card in context["cards"]
        ],
    }
