"""Several runs on one page: which is fastest where, what a precision buys, and whether repeats agree.

Runs are never paired. An interval of one run describes the minutes of that run, and sweeps of one build on
one machine scatter by more, so every difference between runs allows for that, by the rule of
`launchbound compare` with one sweep each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from loadtests.compare.runs import (
    FACTS,
    LAYOUT,
    Entry,
    Shared,
    differing,
    entries_of,
    groups,
    read_entries,
    reference_of,
)
from loadtests.fleet.run import MEASURED, Fleet, FleetTask, read_fleet
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Group
from loadtests.report import wording
from loadtests.report.formatting import colour, listed, milliseconds, significant, span
from loadtests.report.page import Section, Table, Text, write_page
from loadtests.report.results import Results, read_results
from loadtests.report.sections import kernel_share
from loadtests.report.summaries import Verdict
from loadtests.report.wording import crossing, ratio
from loadtests.run.rows import RowsError
from loadtests.run.series import read_series
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import (
    LATENCY_SCATTER,
    OverSweeps,
    State,
    baseline_of,
    most_named,
    over_sweeps,
    paired,
    replicates,
)
from service.statistics.intervals import Interval

PAGE_FILE = "runs.html"
FLEET_PAGE_FILE = "fleet.html"
DOCUMENT_FILE = "runs.json"
TEMPLATES = Path(__file__).with_name("templates")

Page = tuple[dict[str, Any], dict[str, Any]]
"""What the templates need, and `runs.json`."""

SCATTER_TEXT = f"{significant(100 * LATENCY_SCATTER.deviation, 2)} %"
"""How much sweeps of one build scatter: of the reference machine, as one run of each cannot show it."""


def make_picture(folders: Sequence[Path], out: Path) -> dict[str, Any]:
    """Write `runs.html` (one file, offline), `runs.md` and `runs.json` of `folders` into `out`, made anew.

    Returns what `runs.json` holds. Raises RowsError for a folder that holds no results.
    """
    context, found = picture(read_entries(folders))
    out.mkdir(parents=True, exist_ok=True)
    _write(out, context, found)
    return found


def _write(out: Path, context: dict[str, Any], found: dict[str, Any]) -> None:
    write_page(out, PAGE_FILE, context, TEMPLATES)
    (out / DOCUMENT_FILE).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def make_fleet_picture(folder: Path) -> dict[str, Any]:
    """Write `fleet.html` and `fleet.md` of the fleet in `folder` there: its machines, the models apart.

    Raises RowsError where none of its tasks has measured anything, with what they said.
    """
    fleet = read_fleet(folder)
    results, absent = dict[str, Results](), dict[str, str]()
    for task in fleet.tasks:
        try:
            if task.state not in MEASURED:
                go_on = f"go on with `launchbound fleet --resume {folder}`"
                raise RowsError("; ".join(filter(None, [task.state, task.said, go_on])))
            results[task.name] = read_results(folder / task.name)
        except RowsError as error:
            absent[task.name] = str(error)
    if not results:
        why = "; ".join(f"{name}: {said}" for name, said in absent.items())
        raise RowsError(f"no task of {folder} has measured anything ({why})")
    tasks = [task for task in fleet.tasks if task.name in results]
    entries = entries_of(list(results.values()), [_label(task, fleet) for task in tasks])
    by_model: dict[str, list[Entry]] = {}
    for task, entry in zip(tasks, entries, strict=True):
        by_model.setdefault(task.model, []).append(entry)
    pages = {model: picture(own, ask_repeats=False) for model, own in by_model.items()}
    subject = f"fleet · {len(entries)} of {len(fleet.tasks)} tasks measured"
    context, found = _one_page(pages, subject, absent)
    write_page(folder, PAGE_FILE, context, TEMPLATES, FLEET_PAGE_FILE)
    return found


def _one_page(pages: Mapping[str, Page], subject: str, absent: dict[str, str]) -> Page:
    """The pages of several models as one, on which they stand apart."""
    names = {model: f"{model}: " if len(pages) > 1 else "" for model in pages}
    answers = (names[model] + found["headline"] for model, (_, found) in pages.items())
    missing = f"NOT MEASURED: {listed(list(absent))}. " if absent else ""
    headline = missing + " ".join(answers)
    context = next(iter(pages.values()))[0] | {
        "headline": headline,
        "subject": subject,
        "entries": [entry for own, _ in pages.values() for entry in own["entries"]],
        "absent": absent,
        "sections": [
            replace(section, title=names[model] + section.title)
            for model, (own, _) in pages.items()
            for section in own["sections"]
        ],
        "said": [one for own, _ in pages.values() for one in own["said"]],
    }
    runs = [run for _, found in pages.values() for run in found["runs"]]
    groups = {model: found["groups"] for model, (_, found) in pages.items()}
    repeats = {model: found["repeats"] for model, (_, found) in pages.items()}
    found = {"headline": headline, "absent": absent, "runs": runs}
    return context, found | {"groups": groups, "repeats": repeats}


def make_series_picture(folder: Path) -> tuple[Table, dict[str, Any]]:
    """The same of the series in `folder`, there; the table of models and batch sizes, and `runs.json`.

    Raises RowsError where no start has measured anything.
    """
    names, results, absent = read_series(folder).plans, dict[str, Results](), dict[str, str]()
    for name in names:
        try:
            results[name] = read_results(folder / name)
        except RowsError:
            absent[name] = f"nothing measured; go on with `launchbound sweep --resume {folder}`"
    if not results:
        raise RowsError(f"no start of the series in {folder} has measured anything")
    by_model: dict[str, list[Entry]] = {}
    for entry in entries_of(list(results.values()), list(results)):
        millions = entry.findings.results.run.engine["parameters"] / 1e6
        by_model.setdefault(f"{entry.facts['model']} ({millions:.3g} M)", []).append(entry)
    pages = {model: picture(own, drawn=LAYOUT) for model, own in by_model.items()}
    context, found = _one_page(pages, f"series · {len(results)} of {len(names)} starts measured", absent)
    table = size_table([place for model, own in by_model.items() for place in places_of(model, own)])
    context["sections"].insert(0, Section("Where the answer changes", "", [table]))
    _write(folder, context, found)
    return table, found


def _label(task: FleetTask, fleet: Fleet) -> str:
    """What tells a task from the others: its machine, and what else differs among them."""
    values = {name: {getattr(one, name) for one in fleet.tasks} for name in ("device", "dtype", "model")}
    return ", ".join([task.machine, *(getattr(task, name) for name, all in values.items() if len(all) > 1)])


def picture(entries: Sequence[Entry], ask_repeats: bool = True, drawn: str | None = None) -> Page:
    """The page of `entries`. In `runs.json` null is what is not known.

    Where all runs are of one build on one machine the question is whether they agree (`ask_repeats`), else
    which is fastest. They may differ in a fact that each start has `drawn`.
    """
    reference = reference_of(entries)
    shared = [Shared(entries, group, reference) for group in groups(entries)]
    places = {one.group: place_of_group(one.group, [other.group for other in shared]) for one in shared}
    apart = differing(entries)
    repeated: dict[Group, Repeated] = {}
    if ask_repeats and not {*apart} - {drawn} and len(entries) > 1:
        repeated = {one.group: Repeated(one) for one in shared if None not in one.verdicts}
    tables = [_table(one, repeated.get(one.group)) for one in shared]
    if repeated:
        answer = _agreed({places[group]: one for group, one in repeated.items()})
        crossings = [(one.name, crossing(one.findings)) for one in entries]
        side_by_side = Section("Does the answer replicate?", "", tables, crossings)
    else:
        answer = _lowest({places[one.group]: one for one in shared})
        side_by_side = Section("Side by side", "", tables)
    bad = [entry.name for entry in entries if not entry.valid]
    headline = (f"NOT VALID: {listed(bad)}. " if bad else "") + answer
    context = {
        "headline": headline,
        "subject": f"{len(entries)} runs side by side",
        "entries": entries,
        "absent": {},
        "repeats": bool(repeated),
        "reference": reference.name if reference and shared else None,
        "sections": [Section("The runs", "", [_runs(entries, apart)]), side_by_side],
        "said": [(entry.letter, wording.headline(entry.findings)) for entry in entries],
        "scatter": SCATTER_TEXT,
        "least_rounds": MINIMUM_ROUNDS,
        "baseline": BASELINE,
    }
    found = {
        "headline": headline,
        "differing": apart,
        "absent": {},
        "runs": [
            {
                "letter": entry.letter,
                "label": entry.label,
                "folder": str(entry.findings.results.folder),
                "facts": entry.facts,
                "valid": entry.valid,
            }
            for entry in entries
        ],
        "groups": [one.numbers for one in shared],
        "precision": {"reference": reference.letter, "groups": [one.precision_numbers for one in shared]}
        if reference and shared
        else None,
        "repeats": {"sweeps": len(entries), "groups": [one.numbers for one in repeated.values()]}
        if repeated
        else None,
    }
    return context, msgspec.json.decode(msgspec.json.encode(found))


def place_of_group(group: Group, shared: Sequence[Group]) -> str:
    """'batch 4', with those of its other conditions in which the runs' cells differ."""
    batch, prompts, tokens, concurrency, _ = group
    words = (f"{prompts}", f"{tokens} tokens", f"c={concurrency}")
    differ = [len({one[number] for one in shared}) > 1 for number in (1, 2, 3)]
    conditions = ", ".join(word for word, differs in zip(words, differ, strict=True) if differs)
    return f"batch {batch}" + (f" ({conditions})" if conditions else "")


def _lowest(shared: Mapping[str, Shared]) -> str:
    if not shared:
        return "These runs have no cells in common: nothing stands side by side."
    at: dict[str, list[str]] = {}
    for place, one in shared.items():
        if one.ranked and not one.alike:
            lone = len(one.ranked) == 1 and not _answer(one.ranked[0].entry.verdict(one.group))
            at.setdefault(one.first + ", not resolved," * lone, []).append(place + one.near)
    parts = [f"{who} at {listed(places)}" for who, places in at.items()]
    alike = [place for place, one in shared.items() if one.alike]
    what = "Lowest latency" if any(len(one.ranked) > 1 for one in shared.values()) else "One run alone"
    won = [f"{what}: {'; '.join(parts)}."] if parts else []
    won += [f"The runs are not told apart at {listed(alike)}."] if alike else []
    return " ".join(won) or "No run is valid: none can be named."


def _runs(entries: Sequence[Entry], apart: Sequence[str]) -> Table:
    rows = []
    for entry in entries:
        results = entry.findings.results
        valid = f"FAILED: {', '.join(entry.failed)}" if entry.failed else "yes"
        rest = (results.run.started, str(len(results.run.order)), valid, results.folder.name)
        facts = (entry.facts[fact] for fact in apart)
        rows.append([Text(entry.letter, colour=entry.colour), *map(Text, [*facts, *rest])])
    alike = ", ".join(f"{fact} {entries[0].facts[fact]}" for fact in FACTS if fact not in apart)
    heads = ["run", *apart, "started", "rounds", "valid", "folder"]
    note = f"Columns before “started” are what differs among them. Alike: {alike}."
    return Table("", heads, rows, note, len(heads))


def _table(shared: Shared, repeated: Repeated | None) -> Table:
    """Every mode in every run, and below what each run would ship, its noise and its kernel share."""
    numbered = list(enumerate(shared.verdicts))
    modes = dict.fromkeys(one.cell.mode for _, verdict in numbered if verdict for one in verdict.modes)
    rows = [
        [Text(mode, colour=colour(mode)), *(_cell(shared, mode, *one) for one in numbered)] for mode in modes
    ]
    answers = [(_answer(one) or "not resolved") if one else "–" for one in shared.verdicts]
    rows.append([Text("mode to ship"), *map(Text, answers)])
    noise = [ratio(one.noise) if one and one.noise else "no control cell" for one in shared.verdicts]
    rows.append([Text(f"{BASELINE} against itself"), *map(Text, noise)])
    shares = [str(kernel_share(one.baseline.main)) if one else "–" for one in shared.verdicts]
    main = shared.entries[0].findings.results.workload.main
    rows.append([Text(f"kernel share of {BASELINE}'s {main}"), *map(Text, shares)])
    heads, note = ["mode", *(entry.name for entry in shared.entries)], f"Lowest latency: {shared.winner}."
    if repeated:
        heads.insert(1, f"all {len(shared.entries)} sweeps")
        note = repeated.agreement
        together = [*(repeated.over_all(mode) for mode in modes), *[Text("")] * 3]
        rows = [[row[0], text, *row[1:]] for row, text in zip(rows, together, strict=True)]
    title = f"Batch {shared.group[0]}: {wording.conditions(shared.group)}"
    return Table(title, heads, rows, note)


def _cell(shared: Shared, mode: str, number: int, verdict: Verdict | None) -> Text:
    """A mode in a run: latency, speed-up in its run, tokens per second, and what its precision buys it."""
    summary = next((one for one in verdict.modes if one.cell.mode == mode), None) if verdict else None
    if summary is None:
        return Text("–")
    under = [f"{significant(summary.throughput.value)} {summary.words.unit}/s"]
    word = ""
    if found := summary.comparison:
        under.insert(0, f"{ratio(found.speedup)} over {BASELINE}, {found.word}")
    if bought := shared.against_reference(mode, number):
        speed, word = bought
        name = shared.reference.letter if shared.reference else ""
        under.append(f"{ratio(speed)} the speed in {name}" if speed else "one round: no interval")
    latency = summary.latency
    return Text(milliseconds(latency.value), span(latency, 1e3), tuple(under), word)


def _answer(verdict: Verdict | None) -> str | None:
    choice = verdict.choice if verdict else None
    return choice.ship if choice and choice.state != "not resolved" else None


# Whether sweeps of one build agree.


class Repeated:
    """One group of cells that all sweeps have.

    `named` is the answer of most sweeps, of `naming`. `gains` are speed-ups over `plain`, the best mode
    without a compiler, by mode, of modes that all sweeps measured.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.answers = [_answer(verdict) for verdict in shared.verdicts if verdict]
        self.named, self.naming = most_named(self.answers)
        self.plain = baseline_of(mode for mode in shared.modes[0] if all(mode in own for own in shared.modes))
        self.gains = self._over(self.plain)

    def _over(self, reference: str) -> dict[str, OverSweeps]:
        """Latency of `reference` over that of each other mode, paired by round within each sweep."""
        found, sweeps = {}, self._shared.modes
        for mode in sweeps[0]:
            if mode != reference and all({mode, reference} <= own.keys() for own in sweeps):
                pairs = [paired(own[reference].rounds, own[mode].rounds) for own in sweeps]
                ratios = [[slow / fast for slow, fast in zip(*both, strict=True)] for both in pairs]
                if all(ratios):
                    found[mode] = over_sweeps(ratios)
        return found

    @property
    def replicates(self) -> bool:
        """Whether at least four of five sweeps have the same answer."""
        return replicates(self.naming, len(self.answers))

    @property
    def gain(self) -> Interval | None:
        """The speed-up of `named` over `plain`; None of `plain` itself."""
        found = self.gains.get(self.named or "")
        return found.ratio if found else None

    @property
    def state(self) -> State:
        """Resolved where the answer replicates, and where the interval of a faster one lies above 1."""
        if not self.replicates:
            return "not resolved"
        if self.named == self.plain:
            return "equivalent"
        return "faster" if self.gain and self.gain.low > 1 else "not resolved"

    @property
    def agreement(self) -> str:
        """'compiled is the answer of 5 of 5.'"""
        if self.named is None:
            return "The answer of no sweep is resolved."
        end = "." if self.replicates else ": the answer does not replicate."
        return f"{self.named} is the answer of {self.naming} of {len(self.answers)}{end}"

    def over_all(self, mode: str) -> Text:
        """A mode's speed-up over `plain` in all sweeps, and by how much they scatter."""
        gain = self.gains.get(mode)
        if gain is None:
            return Text("–")
        scatter = f"sweeps scatter by {100 * gain.deviation:.1f} %"
        return Text(f"{ratio(gain.ratio)} over {self.plain}", under=(scatter,))

    @property
    def numbers(self) -> dict[str, Any]:
        return {
            "batch_size": self._shared.group[0],
            "conditions": wording.conditions(self._shared.group),
            "answers": self.answers,
            "named": self.named,
            "naming": self.naming,
            "replicates": self.replicates,
            "state": self.state,
            "baseline": self.plain,
            "over_baseline": [
                {"mode": mode, "speedup": one.ratio, "deviation": one.deviation}
                for mode, one in self.gains.items()
            ],
        }


def _agreed(repeated: Mapping[str, Repeated]) -> str:
    sweeps = len(next(iter(repeated.values())).answers)
    agreed: dict[str, list[str]] = {}
    apart: dict[str, list[str]] = {}
    for place, one in repeated.items():
        if one.replicates:
            agreed.setdefault(f"{one.named} in {one.naming} of {sweeps}", []).append(place)
        elif one.naming:
            reason = f"no mode is the answer of more than {one.naming} of {sweeps}"
            apart.setdefault(reason, []).append(place)
        else:
            apart.setdefault("no sweep's answer is resolved", []).append(place)
    parts = [f"{named} at {listed(at)}" for named, at in agreed.items()]
    sentences = [f"{sweeps} sweeps of one build agree: {'; '.join(parts)}."] if parts else []
    sentences += [f"The answer does not replicate at {listed(at)}: {why}." for why, at in apart.items()]
    return " ".join(sentences)


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
            gain, starts = compared.speedup if compared else None, "one start"
        else:
            continue
        cell = Text(named, under=(state, *([ratio(gain)] if gain else []), starts))
        yield Place(model, group, None if state == "not resolved" else named, cell)


def size_table(places: Sequence[Place]) -> Table:
    """A row per model and conditions, a column per batch size; the note says where the answer changes."""
    batches = sorted({place.group[0] for place in places})
    cells = {(one.model, wording.conditions(one.group), one.group[0]): one.cell for one in places}
    rows = [
        [Text(model, under=(rest,)), *(cells.get((model, rest, batch), Text("–")) for batch in batches)]
        for model, rest in dict.fromkeys(key[:2] for key in cells)
    ]
    unit = f"Speed-ups are over {PLAIN}, at 95 % over starts; of one start, over its rounds."
    heads = ["model", *(f"batch {batch}" for batch in batches)]
    return Table("", heads, rows, f"{answers_in_words(places)} {unit}")


def answers_in_words(places: Sequence[Place]) -> str:
    """Where the answer changes, or that it does not, and where it is not resolved."""
    every = [place.group for place in places]
    names = {one: f"{one.model.split()[0]}, {place_of_group(one.group, every)}" for one in places}
    answers = {place.answer: names[place] for place in places if place.answer}
    apart = [f"{answer} ({name})" for answer, name in answers.items()]
    same = [f"{answer} wherever it is resolved" for answer in answers] if len(answers) == 1 else apart
    changed = [f"from {a.answer} ({names[a]}) to {b.answer} ({names[b]})" for a, b in changes(places)]
    unresolved = [name for place, name in names.items() if not place.answer]
    said = f"The answer {'changes' if changed else 'is'} {'; '.join(changed or same)}." if answers else ""
    return f"{said} Not resolved: {'; '.join(unresolved)}.".lstrip() if unresolved else said


def changes(places: Sequence[Place]) -> list[tuple[Place, Place]]:
    """Resolved neighbours whose answers differ: along batch sizes, models, and other conditions."""
    lines: dict[Any, list[Place]] = {}
    for place in places:
        model, (batch, *rest) = place.model, place.group
        for key in ((model, *rest), (batch, *rest), (model, batch)) if place.answer else ():
            lines.setdefault(key, []).append(place)
    return [pair for line in lines.values() for pair in pairwise(line) if pair[0].answer != pair[1].answer]
