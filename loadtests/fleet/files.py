"""`fleet.html` (one file, offline), `fleet.md` and `fleet.csv`, written from a fleet's folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.compare.page import TEMPLATES as RUNS_TEMPLATES
from loadtests.compare.page import picture, write_pages
from loadtests.compare.runs import entries_of
from loadtests.fleet.rates import Measured, Row
from loadtests.fleet.record import MEASURED, Fleet, read_fleet
from loadtests.fleet.view import fleet_view, headline, label, tables_of
from loadtests.report.csv_tables import no_formula
from loadtests.report.gpu_power import gpu_power
from loadtests.report.results import Results, read_results
from loadtests.run.rows import RowsError
from service.statistics.intervals import Interval, as_json

PAGE_FILE = "fleet.html"
CSV_FILE = "fleet.csv"
TEMPLATES = (Path(__file__).with_name("templates"), RUNS_TEMPLATES)


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
    entries = [one.entry for one in measured]
    context, _ = picture(entries, absent, ask_repeats=False)
    context["headline"] = headline(tables, measured, absent)
    context["fleet"] = fleet_view(fleet, tables, left_out)
    one_model = len(tables) == 1
    if not one_model:  # they do not share any work
        context["sections"] = context["sections"][:1]
    write_pages(folder, PAGE_FILE, TEMPLATES, context, entries if one_model else [])
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
