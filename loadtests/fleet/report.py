"""A fleet's report: what each machine gives for its time, and where one gives most.

`fleet.html` (one file, offline), `fleet.md` and `fleet.csv`, written from a fleet's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from loadtests.compare.page import PAGE_FILE as PAGE
from loadtests.compare.page import TEMPLATES, picture, place_of_group, warning
from loadtests.compare.runs import Entry, best, entries_of
from loadtests.fleet.run import MEASURED, Fleet, FleetTask, read_fleet
from loadtests.plan.cells import Group
from loadtests.report.csv_files import write_csv
from loadtests.report.formatting import colour, listed, milliseconds, significant, span
from loadtests.report.page import Section, Table, Text, lines, write_page
from loadtests.report.results import Results, read_results
from loadtests.report.summaries import Summary
from loadtests.report.wording import conditions
from loadtests.run.rows import RowsError
from service.statistics.choice import LATENCY_SCATTER, apart
from service.statistics.intervals import Interval, as_json

PAGE_FILE = "fleet.html"
CSV_FILE = "fleet.csv"


@dataclass(frozen=True, slots=True)
class Row:
    """A machine in one group of cells, in the mode that it would ship there."""

    task: FleetTask
    entry: Entry
    group: Group
    summary: Summary
    decided: bool

    @property
    def rate(self) -> Interval:
        return self.summary.tokens_per_second


def make_fleet_report(folder: Path) -> dict[str, Any]:
    """Write the three files of the fleet in `folder` into it; returns them for programs.

    Raises RowsError where none of its tasks has measured anything, with what they said.
    """
    fleet = read_fleet(folder)
    results, absent = _read(folder, fleet)
    if not results:
        why = "; ".join(f"{name}: {said}" for name, said in absent.items())
        raise RowsError(f"no task of {folder} has measured anything ({why})")
    tasks = [task for task in fleet.tasks if task.name in results]
    entries = entries_of(list(results.values()), [_label(task, fleet) for task in tasks])
    rows = _rows(tasks, entries)
    context, _ = picture(entries, absent, ask_repeats=False)
    context["headline"] = warning(entries, absent) + " ".join(_sentences(rows))
    context["sections"] = [_answer(rows), *context["sections"]]
    context["subject"] = f"fleet · {len(entries)} of {len(fleet.tasks)} tasks measured"
    write_page(folder, PAGE, context, TEMPLATES, PAGE_FILE)
    numbers = [_numbers(row) for row in rows]
    write_csv(folder / CSV_FILE, pl.DataFrame(numbers, infer_schema_length=None))
    return {
        "headline": context["headline"],
        "absent": absent,
        "runs": [
            {"task": task.name, "letter": entry.letter, "valid": entry.valid}
            for task, entry in zip(tasks, entries, strict=True)
        ],
        "rows": numbers,
    }


def _read(folder: Path, fleet: Fleet) -> tuple[dict[str, Results], dict[str, str]]:
    """The results of tasks by name, and why others have none."""
    results, absent = dict[str, Results](), dict[str, str]()
    for task in fleet.tasks:
        try:
            if task.state not in MEASURED:
                go_on = f"go on with `launchbound fleet --resume {folder}`"
                raise RowsError("; ".join(filter(None, [task.state, task.said, go_on])))
            results[task.name] = read_results(folder / task.name)
        except RowsError as error:
            absent[task.name] = str(error)
    return results, absent


def _label(task: FleetTask, fleet: Fleet) -> str:
    """What tells a task from the others: its machine, and what else differs among them."""
    values = {name: {getattr(one, name) for one in fleet.tasks} for name in ("device", "dtype", "model")}
    return ", ".join([task.machine, *(getattr(task, name) for name, all in values.items() if len(all) > 1)])


def _rows(tasks: Sequence[FleetTask], entries: Sequence[Entry]) -> list[Row]:
    """By model and group of cells, the most tokens per second first."""
    found = []
    for task, entry in zip(tasks, entries, strict=True):
        for verdict in entry.findings.verdicts:
            summary = best(verdict)
            decided = verdict.choice is not None and verdict.choice.state != "not resolved"
            found.append(Row(task, entry, verdict.group, summary, decided))
    models = [task.model for task in tasks]
    return sorted(
        found,
        key=lambda row: (models.index(row.task.model), str(row.group[1:]), row.group[0], -row.rate.value),
    )


def most(rows: Sequence[Row]) -> list[Row]:
    """Of the valid rows the fastest, and those that are not told apart from it.

    Machines are not paired: a difference is one beyond their intervals and what sweeps of one build scatter.
    """
    known = sorted((row for row in rows if row.entry.valid), key=lambda row: -row.rate.value)
    return [row for row in known if not apart(known[0].rate, row.rate, LATENCY_SCATTER)]


def _sentences(rows: Sequence[Row]) -> list[str]:
    """Which machine has most tokens per second in which mode, by model and group, and who is not resolved."""
    found = list[str]()
    models = list(dict.fromkeys(row.task.model for row in rows))
    for model in models:
        own = [row for row in rows if row.task.model == model]
        groups = list(dict.fromkeys(row.group for row in own))
        several = len({row.task.name for row in own if row.entry.valid}) > 1
        at = dict[str, list[str]]()
        for group in groups:
            first = most([row for row in own if row.group == group])
            if names := [f"{row.entry.name} with {row.summary.cell.mode}" for row in first]:
                who = listed(names) + (", not told apart," if len(names) > 1 else "")
                at.setdefault(who, []).append(place_of_group(group, groups))
        if at:
            where = "; ".join(f"{who} at {listed(places)}" for who, places in at.items())
            of_model = f"{model}: " if len(models) > 1 else ""
            what = "Most tokens per second" if several else "One machine alone"
            found.append(f"{of_model}{what}: {where}.")
    if not found:
        found.append("No valid sweep: no machine and no mode can be named.")
    if few := sorted({row.entry.name for row in rows if not row.decided}):
        found.append(f"The mode of {listed(few)} is not resolved at each batch size.")
    return found


def _answer(rows: Sequence[Row]) -> Section:
    """Which machine, and in which mode: a row per machine, by model and group of cells."""
    heads = ("model", "cells", "machine", "mode to ship", "tokens/s (95 %)", "latency (95 %)")
    return Section("Which machine, and which mode", "", [Table("", heads, list(map(_cells, rows)), left=4)])


def _cells(row: Row) -> list[Text]:
    mode, latency = row.summary.cell.mode, row.summary.latency
    return [
        Text(row.task.model),
        Text(f"batch {row.group[0]}", conditions(row.group)),
        Text(row.entry.name, under=lines(None if row.entry.valid else "NOT VALID"), colour=row.entry.colour),
        Text(mode, under=lines(None if row.decided else "not resolved"), colour=colour(mode)),
        Text(significant(row.rate.value), span(row.rate)),
        Text(milliseconds(latency.value), span(latency, 1e3)),
    ]


def _numbers(row: Row) -> dict[str, Any]:
    """One machine in one group, for programs: seconds are seconds, and None is what is not known."""
    intervals = {"latency_seconds": row.summary.latency, "tokens_per_second": row.rate}
    return {
        "task": row.task.name,
        **{name: getattr(row.task, name) for name in ("machine", "device", "dtype", "model")},
        **dict(zip(("batch_size", "prompt_set", "new_tokens", "concurrency"), row.group, strict=False)),
        "valid": row.entry.valid,
        "mode": row.summary.cell.mode,
        "effective_mode": row.summary.effective,
        "decided": row.decided,
        **{
            name + suffix: as_json(found)[end]
            for name, found in intervals.items()
            for suffix, end in (("", "value"), ("_low", "low"), ("_high", "high"))
        },
    }
