"""The contents of a fleet's report as plain values: its first sentence, its tables and its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtests.compare.page import place_of_group, warning
from loadtests.fleet.rates import NO_PRICE, RATES, Measured, Most, Row, most, rows_of
from loadtests.fleet.record import Fleet, FleetTask
from loadtests.plan.cells import MINIMUM_ROUNDS, Group
from loadtests.report import formatting, wording
from loadtests.report.plotting import colour
from service.statistics.intervals import Interval

Tables = Mapping[str, Mapping[Group, Sequence[Row]]]
"""By model and group of cells."""


def tables_of(measured: Sequence[Measured]) -> Tables:
    """The rows of every group of every model: tokens of different models are not the same work."""
    tables: dict[str, dict[Group, Sequence[Row]]] = {}
    for model in dict.fromkeys(one.task.model for one in measured):
        own = [one for one in measured if one.task.model == model]
        groups = {verdict.group for one in own for verdict in one.entry.findings.verdicts}
        ordered = sorted(groups, key=lambda one: (one[1:4], one[0]))
        tables[model] = {group: rows_of(own, group) for group in ordered}
    return tables


def label(task: FleetTask, fleet: Fleet) -> str:
    """What tells a task from the others: its machine, and what else differs among them."""
    differing = (
        name for name in ("device", "dtype", "model") if len({getattr(one, name) for one in fleet.tasks}) > 1
    )
    return ", ".join([task.machine, *(getattr(task, name) for name in differing)])


def headline(tables: Tables, measured: Sequence[Measured], absent: Mapping[str, str]) -> str:
    """Which machine and which mode, in a sentence or two; before it, what is not valid or not there."""
    several = len(tables) > 1
    answers = [
        (f"{model}: " if several else "") + sentence
        for model, groups in tables.items()
        for sentence in _answers(groups)
    ]
    few = sorted(
        {
            row.measured.entry.name
            for g in tables.values()
            for rows in g.values()
            for row in rows
            if not row.decided
        }
    )
    if few:
        answers.append(
            f"Fewer than {MINIMUM_ROUNDS} rounds do not tell the modes of {formatting.listed(few)} apart."
        )
    return warning([one.entry for one in measured], absent) + " ".join(answers)


def _answers(groups: Mapping[Group, Sequence[Row]]) -> list[str]:
    """One sentence per rate that two machines have; of a single machine, its modes."""
    found = []
    for rate in RATES:
        at: dict[str, list[str]] = {}
        alike: list[str] = []
        for group, rows in groups.items():
            if (first := most(rows, rate)) is not None:
                place = place_of_group(group, list(groups))
                if first.alike:
                    alike.append(place)
                else:
                    at.setdefault(_named(first.row), []).append(place + _near(first))
        if at:
            told = "; ".join(f"{who} at {formatting.listed(places)}" for who, places in at.items())
            found.append(f"Most {rate}: {told}.")
        if alike:
            found.append(f"The machines are not told apart in {rate} at {formatting.listed(alike)}.")
    return found or [_alone(groups)]


def _alone(groups: Mapping[Group, Sequence[Row]]) -> str:
    """No two machines have a group in common that is valid."""
    at: dict[str, list[str]] = {}
    for group, rows in groups.items():
        for row in rows:
            if row.valid:
                at.setdefault(_named(row), []).append(place_of_group(group, list(groups)))
    if not at:
        return "No valid sweep: no machine and no mode can be named."
    told = "; ".join(f"{who} at {formatting.listed(places)}" for who, places in at.items())
    return f"One machine alone: {told}; there is nothing to compare it with."


def _named(row: Row) -> str:
    """'A (epyc) with compiled'."""
    return f"{row.measured.entry.name} with {wording.short_name(row.summary)}"


def _near(first: Most) -> str:
    letters = sorted(row.measured.entry.letter for row in first.near)
    return f" (not apart from {formatting.listed(letters)})" if letters else ""


def fleet_view(fleet: Fleet, tables: Tables, left_out: Mapping[str, str]) -> dict[str, Any]:
    """What a fleet's page has besides the picture of its runs."""
    return {
        "name": fleet.name,
        "left_out": left_out,
        "tables": [
            _table(model if len(tables) > 1 else None, group, rows)
            for model, groups in tables.items()
            for group, rows in groups.items()
        ],
        "tasks": [_task(task) for task in fleet.tasks],
    }


def _table(model: str | None, group: Group, rows: Sequence[Row]) -> dict[str, Any]:
    batch, prompts, tokens, concurrency, _ = group
    firsts = {rate: most(rows, rate) for rate in RATES}
    return {
        "title": f"Batch {batch}" + (f", {model}" if model else ""),
        "conditions": f"{prompts} prompts, {tokens} new tokens, concurrency {concurrency}",
        "rows": [_row(row, firsts) for row in rows],
    }


def _row(row: Row, firsts: Mapping[str, Most | None]) -> dict[str, Any]:
    entry, latency = row.measured.entry, row.summary.latency
    return {
        "letter": entry.letter,
        "label": entry.label,
        "colour": entry.colour,
        "mode": wording.short_name(row.summary),
        "mode_colour": colour(row.summary.cell.mode),
        "note": "" if row.decided else f"not decided below {MINIMUM_ROUNDS} rounds",
        "valid": row.valid,
        "latency": formatting.milliseconds(latency.value),
        "latency_span": formatting.span(latency, 1e3),
        "tokens": _cell(row, "tokens per second", "", firsts),
        "per_dollar": _cell(row, "tokens per dollar", NO_PRICE, firsts),
        "per_joule": _cell(row, "tokens per joule", row.no_joule, firsts),
    }


def _cell(row: Row, rate: str, why: str, firsts: Mapping[str, Most | None]) -> dict[str, str]:
    """A rate with its interval, and a word where it is the most, or is not apart from that."""
    found: Interval | None = RATES[rate](row)
    if found is None:
        return {"value": "–", "span": why, "word": ""}
    first = firsts[rate]
    word = ""
    if first is not None and first.row is row:
        word = "most, not apart" if first.near else "most"
    elif first is not None and any(one is row for one in first.near):
        word = "not apart"
    return {"value": formatting.significant(found.value), "span": formatting.span(found), "word": word}


def _task(task: FleetTask) -> dict[str, Any]:
    last = task.tries[-1] if task.tries else None
    seconds = last.sweep_seconds if last else None
    return {
        "name": task.name,
        "state": task.state,
        "said": task.said or "",
        "price": "–" if task.price is None else f"${task.price:g}",
        "node": last.address if last else "–",
        "tries": len(task.tries),
        "lost": "; ".join(one.said for one in task.tries if one.said),
        "sweep": "–" if seconds is None else f"{seconds:.1f} s",
        "control": "–" if task.control_seconds is None else f"{task.control_seconds:.2f} s",
        "niceness": last.niceness if last and last.niceness is not None else "–",
    }
