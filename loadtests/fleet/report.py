"""A fleet's report: what each machine gives for its time and money, and where one gives most.

`fleet.html` (one file, offline), `fleet.md` and `fleet.csv`, written from a fleet's folder.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from loadtests.compare.page import PAGE_FILE as PAGE
from loadtests.compare.page import TEMPLATES, picture, place_of_group, warning
from loadtests.compare.runs import Entry, best, entries_of
from loadtests.fleet.plan import MEASURED, Fleet, FleetTask, read_fleet
from loadtests.plan.cells import Group
from loadtests.report.csv_files import no_formula
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

SECOND, DOLLAR = RATES = ("tokens per second", "tokens per dollar")


@dataclass(frozen=True, slots=True)
class Row:
    """A machine in one group of cells, in the mode that it would ship there, with the rates that it has."""

    task: FleetTask
    entry: Entry
    group: Group
    summary: Summary
    decided: bool
    rates: Mapping[str, Interval]

    @property
    def named(self) -> str:
        """'A (epyc) with compiled'."""
        return f"{self.entry.name} with {self.summary.cell.mode}"


Place = tuple[str, Group]
"""A model and a group of cells: tokens of different models are not the same work."""

Tables = Mapping[Place, Sequence[Row]]
"""The most tokens per second first."""


@dataclass(frozen=True, slots=True)
class Most:
    """The row with the most of a rate, and the others not told apart from it; `alike`: no other is."""

    row: Row
    near: tuple[Row, ...]
    alike: bool


def make_fleet_report(folder: Path) -> dict[str, Any]:
    """Write the three files of the fleet in `folder` into it; returns them for programs.

    Raises RowsError where none of its tasks has measured anything, with what they said.
    """
    fleet = read_fleet(folder)
    tasks, entries, absent = _read(folder, fleet)
    left_out = {task.name: task.said or "" for task in fleet.tasks if task.state == "left out"}
    if not tasks:
        told = "; ".join(f"{name}: {why}" for name, why in (absent | left_out).items())
        raise RowsError(f"no task of {folder} has measured anything ({told})")
    tables = _tables_of(tasks, entries)
    context, _ = picture(entries, absent, ask_repeats=False)
    context["headline"] = warning(entries, absent) + " ".join(_sentences(tables))
    context["sections"] = [_answer(tables), _tasks(fleet)]
    context["subject"] = f"fleet {fleet.name} · {len(entries)} of {len(fleet.tasks)} tasks measured"
    write_page(folder, PAGE, context, TEMPLATES, PAGE_FILE)
    rows = [_numbers(row) for found in tables.values() for row in found]
    with (folder / CSV_FILE).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["task"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: no_formula(value) for name, value in row.items()} for row in rows)
    return {
        "headline": context["headline"],
        "absent": absent,
        "left_out": left_out,
        "runs": [
            {"task": task.name, "letter": entry.letter, "valid": entry.valid}
            for task, entry in zip(tasks, entries, strict=True)
        ],
        "rows": rows,
        "control_seconds": {task.name: task.control_seconds for task in fleet.tasks},
    }


def _read(folder: Path, fleet: Fleet) -> tuple[list[FleetTask], list[Entry], dict[str, str]]:
    """The tasks that have results with these, and why others that should have none."""
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
    return tasks, entries_of(list(results.values()), [_label(task, fleet) for task in tasks]), absent


def _label(task: FleetTask, fleet: Fleet) -> str:
    """What tells a task from the others: its machine, and what else differs among them."""
    differing = (
        name for name in ("device", "dtype", "model") if len({getattr(one, name) for one in fleet.tasks}) > 1
    )
    return ", ".join([task.machine, *(getattr(task, name) for name in differing)])


def _tables_of(tasks: Sequence[FleetTask], entries: Sequence[Entry]) -> Tables:
    found: dict[Place, list[Row]] = {}
    for task, entry in zip(tasks, entries, strict=True):
        for verdict in entry.findings.verdicts:
            summary = best(verdict)
            rates = {SECOND: summary.tokens_per_second}
            if task.price is not None:
                factor, rate = 3600 / task.price, rates[SECOND]
                ends = (rate.value * factor, rate.low * factor, rate.high * factor)
                rates[DOLLAR] = Interval(*ends, rate.samples)
            decided = verdict.choice is not None and verdict.choice.state != "not resolved"
            row = Row(task, entry, verdict.group, summary, decided, rates)
            found.setdefault((task.model, verdict.group), []).append(row)
    models = list(dict.fromkeys(task.model for task in tasks))
    places = sorted(found, key=lambda place: (models.index(place[0]), place[1][1:4], place[1][0]))
    return {place: sorted(found[place], key=lambda row: -row.rates[SECOND].value) for place in places}


def most(rows: Sequence[Row], rate: str) -> Most | None:
    """Of the valid rows that have `rate`; None where fewer than two have, so that nothing is compared.

    Machines are not paired: a difference is one beyond their intervals and what sweeps of one build scatter.
    """
    known = [(row.rates[rate], row) for row in rows if row.entry.valid and rate in row.rates]
    if len(known) < 2:
        return None
    first, row = max(known, key=lambda one: one[0].value)
    near = tuple(
        other for value, other in known if other is not row and not apart(first, value, LATENCY_SCATTER)
    )
    return Most(row, near, alike=len(near) == len(known) - 1)


def _sentences(tables: Tables) -> list[str]:
    """Which machine and which mode, by model, and who has too few rounds to say."""
    by_model = [(model, dict(found)) for model, found in groupby(tables.items(), lambda one: one[0][0])]
    found = [
        (f"{model}: " if len(by_model) > 1 else "") + sentence
        for model, own in by_model
        for sentence in _of_one_model({group: rows for (_, group), rows in own.items()})
    ]
    if few := sorted({row.entry.name for rows in tables.values() for row in rows if not row.decided}):
        found.append(f"The mode of {listed(few)} is not resolved at each batch size.")
    return found


def _of_one_model(by_group: Mapping[Group, Sequence[Row]]) -> list[str]:
    """One sentence per rate that two machines have; of a single machine, its modes."""
    places = {group: place_of_group(group, list(by_group)) for group in by_group}
    found = []
    for rate in RATES:
        at: dict[str, list[str]] = {}
        alike: list[str] = []
        for group, rows in by_group.items():
            if (first := most(rows, rate)) is None:
                continue
            if first.alike:
                alike.append(places[group])
                continue
            letters = sorted(row.entry.letter for row in first.near)
            near = f" (not apart from {listed(letters)})" if letters else ""
            at.setdefault(first.row.named, []).append(places[group] + near)
        if at:
            found.append(f"Most {rate}: {_listed(at)}.")
        if alike:
            found.append(f"The machines are not told apart in {rate} at {listed(alike)}.")
    if found:
        return found
    alone: dict[str, list[str]] = {}
    for group, rows in by_group.items():
        for row in (row for row in rows if row.entry.valid):
            alone.setdefault(row.named, []).append(places[group])
    if not alone:
        return ["No valid sweep: no machine and no mode can be named."]
    return [f"One machine alone: {_listed(alone)}; there is nothing to compare it with."]


def _listed(at: Mapping[str, list[str]]) -> str:
    return "; ".join(f"{who} at {listed(where)}" for who, where in at.items())


def _answer(tables: Tables) -> Section:
    """Which machine, and in which mode: a row per machine, by model and group of cells."""
    note = "Tokens per dollar are tokens per second at the plan's price, with the machine busy all the time."
    heads = ("model", "cells", "machine", "mode to ship", "tokens/s (95 %)", "latency (95 %)", "tokens/$")
    cells = [
        _cells(row, {rate: most(rows, rate) for rate in RATES}) for rows in tables.values() for row in rows
    ]
    return Section("Which machine, and which mode", note, [Table("", heads, cells, left=4)])


def _cells(row: Row, firsts: Mapping[str, Most | None]) -> list[Text]:
    latency = row.summary.latency
    undecided = None if row.decided else "not resolved"
    return [
        Text(row.task.model),
        Text(f"batch {row.group[0]}", conditions(row.group)),
        Text(row.entry.name, under=lines(None if row.entry.valid else "NOT VALID"), colour=row.entry.colour),
        Text(row.summary.cell.mode, under=lines(undecided), colour=colour(row.summary.cell.mode)),
        _rate(row, SECOND, firsts),
        Text(milliseconds(latency.value), span(latency, 1e3)),
        _rate(row, DOLLAR, firsts),
    ]


def _rate(row: Row, rate: str, firsts: Mapping[str, Most | None]) -> Text:
    """A rate with its interval, and a word where it is the most, or is not apart from that."""
    if (found := row.rates.get(rate)) is None:
        return Text("–", "no price in the plan")
    first, word = firsts[rate], ""
    if first is not None and first.row is row:
        word = "most, not apart" if first.near else "most"
    elif first is not None and any(one is row for one in first.near):
        word = "not apart"
    return Text(significant(found.value), span(found), word=word)


def _tasks(fleet: Fleet) -> Section:
    note = (
        "Control-plane time is all of a task, from its beginning on a node to its folder on this side, that "
        "is not the sweep itself. At a niceness above 0 everything else on the machine went first."
    )
    heads = (
        "task", "state", "node", "tries", "price per hour", "sweep", "control plane", "niceness",
    )  # fmt: skip
    return Section("The tasks", note, [Table("", heads, [_task(one) for one in fleet.tasks], left=3)])


def _task(task: FleetTask) -> list[Text]:
    last = task.tries[-1] if task.tries else None
    seconds, control = (last.sweep_seconds, last.control_seconds) if last else (None, None)
    return [
        Text(task.name),
        Text(task.state, under=lines(task.said)),
        Text(last.address if last else "–"),
        Text(str(len(task.tries)), under=tuple(one.said for one in task.tries if one.said)),
        Text("–" if task.price is None else f"${task.price:g}"),
        Text("–" if seconds is None else f"{seconds:.1f} s"),
        Text("–" if control is None else f"{control:.2f} s"),
        Text(str(last.niceness) if last and last.niceness is not None else "–"),
    ]


def _numbers(row: Row) -> dict[str, Any]:
    """One machine in one group, for programs: seconds are seconds, and None is what is not known."""
    batch, prompts, tokens, concurrency, _ = row.group
    return {
        "task": row.task.name,
        **{name: getattr(row.task, name) for name in ("machine", "device", "dtype", "model")},
        "batch_size": batch,
        "prompt_set": prompts,
        "new_tokens": tokens,
        "concurrency": concurrency,
        "valid": row.entry.valid,
        "mode": row.summary.cell.mode,
        "effective_mode": row.summary.effective,
        "decided": row.decided,
        "price_dollars_per_hour": row.task.price,
        **_ends("latency_seconds", row.summary.latency),
        **_ends("tokens_per_second", row.rates.get(SECOND)),
        **_ends("tokens_per_dollar", row.rates.get(DOLLAR)),
    }


def _ends(name: str, found: Interval | None) -> dict[str, Any]:
    values = {"value": None, "low": None, "high": None} if found is None else as_json(found)
    return {name: values["value"], f"{name}_low": values["low"], f"{name}_high": values["high"]}
