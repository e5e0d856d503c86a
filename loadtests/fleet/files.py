"""`fleet.html` (one file, offline), `fleet.md` and `fleet.csv`, written from a fleet's folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.fleet.rates import Measured, Row
from loadtests.fleet.record import MEASURED, Fleet, read_fleet
from loadtests.fleet.view import Tables, fleet_view, headline, label, tables_of
from loadtests.report.csv_tables import no_formula
from loadtests.report.gpu_power import gpu_power
from loadtests.report.page import embedded, template, written_page
from loadtests.report.results import Results, read_results
from loadtests.run.rows import RowsError
from loadtests.side_by_side.entry import entries_of
from loadtests.side_by_side.files import TEMPLATES as RUNS_TEMPLATES
from loadtests.side_by_side.plots import plots
from loadtests.side_by_side.precisions import precisions_of
from loadtests.side_by_side.view import groups, view
from service.statistics.intervals import Interval, as_json

PAGE_FILE = "fleet.html"
MARKDOWN_FILE = "fleet.md"
CSV_FILE = "fleet.csv"
TEMPLATES = (Path(__file__).with_name("templates"), RUNS_TEMPLATES)

_OF_RUNS: dict[str, Any] = {"cards": [], "speedups": [], "load": [], "precision": None}
"""Left out where models differ: they do not share any work."""


def make_fleet_report(folder: Path) -> dict[str, Any]:
    """Write the three files of the fleet in `folder` into it; returns them for programs.

    Raises RowsError where none of its tasks has measured anything, with what they said.
    """
    fleet = read_fleet(folder)
    measured, absent = _read(folder, fleet)
    left_out = {task.name: task.said or "" for task in fleet.tasks if task.state == "left out"}
    if not measured:
        told = "; ".join(f"{name}: {why}" for name, why in (absent | left_out).items())
        raise RowsError(f"no task of {folder} has measured anything ({told})")
    tables = tables_of(measured)
    context, drawn = _context(fleet, measured, tables, absent, left_out)
    page = written_page(TEMPLATES, PAGE_FILE, context, drawn)
    (folder / PAGE_FILE).write_text(page, encoding="utf-8")
    text = template(TEMPLATES, MARKDOWN_FILE).render(**context)
    (folder / MARKDOWN_FILE).write_text(text, encoding="utf-8")
    rows = [
        _numbers(model, row)
        for model, by_group in tables.items()
        for rows in by_group.values()
        for row in rows
    ]
    _write_csv(folder / CSV_FILE, rows)
    return {
        "headline": context["headline"],
        "absent": absent,
        "left_out": left_out,
        "runs": [
            {"task": one.task.name, "letter": one.entry.letter, "valid": one.entry.valid} for one in measured
        ],
        "rows": rows,
        "control_seconds": {task.name: task.control_seconds for task in fleet.tasks},
    }


def _read(folder: Path, fleet: Fleet) -> tuple[list[Measured], dict[str, str]]:
    """The tasks that have results, and why others that should have none."""
    results: dict[str, Results] = {}
    absent: dict[str, str] = {}
    for task in fleet.tasks:
        if task.state in MEASURED:
            try:
                results[task.name] = read_results(folder / task.name)
            except RowsError as error:
                absent[task.name] = str(error)
        elif task.state != "left out":
            go_on = f"go on with `launchbound fleet --resume {folder}`"
            absent[task.name] = "; ".join([task.state, *([task.said] if task.said else []), go_on])
    tasks = [task for task in fleet.tasks if task.name in results]
    entries = entries_of(list(results.values()), [label(task, fleet) for task in tasks])
    return [Measured(t, e, gpu_power(results[t.name])) for t, e in zip(tasks, entries, strict=True)], absent


def _context(
    fleet: Fleet,
    measured: Sequence[Measured],
    tables: Tables,
    absent: Mapping[str, str],
    left_out: Mapping[str, str],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the templates need, and the plots: those of runs side by side, where all are of one model."""
    entries = [one.entry for one in measured]
    one_model = len(tables) == 1
    shared = groups(entries) if one_model else []
    context = view(entries, precisions_of(entries, shared), absent)
    context |= {} if one_model else _OF_RUNS
    context["headline"] = headline(tables, measured, absent)
    context["fleet"] = fleet_view(fleet, tables, left_out)
    drawn = [
        {"id": plot.id, "height": plot.figure.layout.height, "json": embedded(plot)}
        for plot in plots(entries, shared)
    ]
    return context, drawn


def _numbers(model: str, row: Row) -> dict[str, Any]:
    """One machine in one group, for programs: seconds are seconds, and None is what is not known."""
    batch, prompts, tokens, concurrency, _ = row.summary.cell.group
    return {
        "task": row.measured.task.name,
        "machine": row.measured.task.machine,
        "device": row.measured.task.device,
        "dtype": row.measured.task.dtype,
        "model": model,
        "batch_size": batch,
        "prompt_set": prompts,
        "new_tokens": tokens,
        "concurrency": concurrency,
        "valid": row.valid,
        "mode": row.summary.cell.mode,
        "effective_mode": row.summary.effective,
        "decided": row.decided,
        "price_dollars_per_hour": row.measured.task.price,
        **_ends("latency_seconds", row.summary.latency),
        **_ends("tokens_per_second", row.tokens_per_second),
        **_ends("tokens_per_dollar", row.tokens_per_dollar),
        **_ends("tokens_per_gpu_joule", row.tokens_per_joule),
    }


def _ends(name: str, found: Interval | None) -> dict[str, Any]:
    values = {"value": None, "low": None, "high": None} if found is None else as_json(found)
    return {name: values["value"], f"{name}_low": values["low"], f"{name}_high": values["high"]}


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["task"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: no_formula(value) for name, value in row.items()} for row in rows)
