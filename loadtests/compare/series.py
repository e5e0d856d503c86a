"""The page over a series: by model whether its starts agree, and what to ship at which batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from loadtests.compare.page import Repeated, one_page, picture, place_of_group, write_picture
from loadtests.compare.runs import LAYOUT, Entry, Shared, entries_of, groups
from loadtests.plan.cells import Group
from loadtests.report import wording
from loadtests.report.formatting import listed
from loadtests.report.page import Section, Table, Text
from loadtests.report.results import Results, read_results
from loadtests.run.rows import RowsError
from loadtests.run.series import read_series
from service.statistics.choice import BASELINE as PLAIN


def make_series_picture(folder: Path) -> tuple[Table, dict[str, Any]]:
    """Write `runs.html`, `runs.md` and `runs.json` over the starts of the series in `folder` there.

    Returns the table of models and batch sizes, and what `runs.json` holds. Raises RowsError where no start
    has measured anything.
    """
    names, results, absent = read_series(folder).plans, dict[str, Results](), dict[str, str]()
    for name in names:
        try:
            results[name] = read_results(folder / name)
        except RowsError:
            absent[name] = f"it has no rows; go on with `launchbound sweep --resume {folder}`"
    if not results:
        raise RowsError(f"no start of the series in {folder} has measured anything")
    by_model: dict[str, list[Entry]] = {}
    for entry in entries_of(list(results.values()), list(results)):
        size = f"{entry.findings.results.run.engine['parameters'] / 1e6:.3g} M parameters"
        by_model.setdefault(f"{entry.facts['model']} ({size})", []).append(entry)
    pages = {model: picture(own, {}, drawn=LAYOUT) for model, own in by_model.items()}
    subject = f"series · {len(results)} of {len(names)} starts measured"
    context, found = one_page(pages, subject, absent)
    table = size_table([place for model, own in by_model.items() for place in places_of(model, own)])
    context["sections"].insert(0, Section("Where the answer changes", "", [table]))
    return table, write_picture(folder, context, found)


class Place(NamedTuple):
    """A batch size of a model under some conditions: the mode to ship, None where that is not resolved."""

    model: str
    group: Group
    answer: str | None
    cell: Text


def places_of(model: str, entries: Sequence[Entry]) -> Iterator[Place]:
    """By conditions and batch size what the valid ones of the starts `entries` of a model say together."""
    valid = [entry for entry in entries if entry.valid]
    for group in groups(valid):
        shared = Shared([entry for entry in valid if entry.verdict(group)], group)
        (verdict, *others) = shared.verdicts
        if others:
            over = Repeated(shared)
            named, state, gain = over.named or "–", over.state, over.gain
            starts = f"{over.naming} of {len(over.answers)} starts"
        elif verdict and verdict.choice and verdict.shipped:
            named, state, compared = verdict.choice.ship, verdict.choice.state, verdict.shipped.against_plain
            gain, starts = compared and compared.speedup, "one start"
        else:
            continue
        cell = Text(named, under=(*([wording.ratio(gain)] if gain else []), starts), word=state)
        yield Place(model, group, None if state == "not resolved" else named, cell)


def size_table(places: Sequence[Place]) -> Table:
    """A row per model and conditions, a column per batch size; the note says where the answer changes."""
    batches = sorted({place.group[0] for place in places})
    cells: dict[tuple[str, str], dict[int, Text]] = {}
    for place in places:
        row = cells.setdefault((place.model, wording.conditions(place.group)), {})
        row[place.group[0]] = place.cell
    rows = [
        [Text(model, under=(conditions,)), *(row.get(batch, Text("–")) for batch in batches)]
        for (model, conditions), row in cells.items()
    ]
    note = (
        f"{answers_in_words(places)} Each speed-up is over {PLAIN}, with its 95 % interval over starts (of "
        "one start: over its rounds). Of several starts, at least four of five have the same answer where it "
        "is resolved, and a faster one's interval over starts lies above 1."
    )
    return Table("", ["model", *(f"batch {batch}" for batch in batches)], rows, note)


def answers_in_words(places: Sequence[Place]) -> str:
    """Where the answer changes, or that it does not, and where it is not resolved."""
    every = [place.group for place in places]
    names = {one: f"{one.model.split()[0]}, {place_of_group(one.group, every)}" for one in places}
    answers = sorted({place.answer for place in places if place.answer})
    same = f"The answer is {listed(answers)} wherever it is resolved." if answers else ""
    changed = [f"from {a.answer} ({names[a]}) to {b.answer} ({names[b]})" for a, b in changes(places)]
    unresolved = [name for place, name in names.items() if not place.answer]
    said = f"The answer changes {'; '.join(changed)}." if changed else same
    return f"{said} Not resolved: {'; '.join(unresolved)}.".lstrip() if unresolved else said


def changes(places: Sequence[Place]) -> Iterator[tuple[Place, Place]]:
    """Neighbours whose answers differ: along batch sizes, models and other conditions, one of them at a time.

    A place whose answer is not resolved is nobody's neighbour.
    """
    for axis in range(3):
        lines: dict[Any, list[Place]] = {}
        for place in places:
            others = [place.group[0], place.model, place.group[1:]]
            others.pop(axis)
            if place.answer:
                lines.setdefault(tuple(others), []).append(place)
        for line in lines.values():
            yield from (pair for pair in pairwise(line) if pair[0].answer != pair[1].answer)
