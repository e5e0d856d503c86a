"""Runs to be compared: what each was measured on, which are alike, and how their cells compare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from dashboards.theme import PALETTE
from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Cell, Group
from loadtests.plan.plan_file import REFERENCE
from loadtests.report.findings import Findings
from loadtests.report.formatting import listed
from loadtests.report.results import Results, read_results
from loadtests.report.summaries import Summary, Verdict
from loadtests.report.wording import conditions
from loadtests.run.rows import RowsError
from loadtests.run.run_file import RUN_FILE, RunError, SweepRun
from loadtests.run.target import linear_layout
from service.statistics.choice import LATENCY_SCATTER, Rounds, Word, difference, paired, word_of
from service.statistics.intervals import Interval

UNKNOWN = "not recorded"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LAYOUT = "layout of linear weights"

Reading = Callable[[SweepRun], Any]


class Unlike(RowsError):
    """Sweeps that are not compared; the message names what differs, and the remedy."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """A fact in which sweeps differ, and its different values as text."""

    fact: str
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.fact}: {' / '.join(self.values)}"


def _environment(name: str) -> Reading:
    return lambda run: run.environment.get(name)


def _engine(name: str) -> Reading:
    return lambda run: run.engine.get(name)


def _gpus(field: str) -> Reading:
    return lambda run: ", ".join(str(gpu.get(field)) for gpu in run.environment.get("gpus") or []) or "none"


def _device(run: SweepRun) -> str | None:
    """A GPU's name; of a CPU just that, because its name is a fact of its own."""
    return run.engine.get("device_name" if run.engine.get("device") == "cuda" else "device")


def _commit(run: SweepRun) -> str | None:
    commit = run.environment.get("commit")
    return f"{commit}+" if commit and run.environment.get("dirty") else commit


def _method(run: SweepRun) -> str:
    """Of the service, and of the load generator where that has another."""
    both = (run.environment.get("method"), run.method)
    return ", load generator ".join(dict.fromkeys(UNKNOWN if one is None else str(one) for one in both))


NEEDED: Mapping[str, Reading] = {
    "the service's processor": _environment("cpu"),
    "replicas behind its address": lambda run: "several" if run.plan.replicas else "none",
    "its cores": _environment("cores"),
    "its GPU": _gpus("name"),
    "device": _device,
    "threads": _engine("threads"),
    "model hash": _engine("model_hash"),
    "dtype": _engine("dtype"),
    "torch": _engine("torch"),
    "CUDA": lambda run: run.engine.get("cuda") or "none",
    "context": _engine("context"),
    "prefill chunk": _engine("prefill_chunk"),
    LAYOUT: lambda run: linear_layout(run.engine) or "aten",
    "method": _method,
    "batching": lambda run: str(run.engine.get("batching", "off")),
    "load processes": lambda run: str(run.settings.get("workers", 1)),
}
"""What makes a difference of its own."""

NOTED: Mapping[str, Reading] = {
    "commit": _commit,
    "Python": _environment("python"),
    "system": _environment("system"),
    "GPU driver": _gpus("driver_version"),
    "governor": _environment("governor"),
    "instruction sets": _environment("cpu_features"),
    "batch buckets": lambda run: str(run.engine.get("batch_buckets")),
}
"""What a comparison is about, or what is usually without effect."""

FACTS = {"model": _engine("model"), **NEEDED, **NOTED}
"""Of a run, in the order of the table."""

NAMING = (
    "model", "dtype", "device", "the service's processor", "threads", "torch", "commit", "context", LAYOUT,
    "batching",
)  # fmt: skip
"""Which of them name a run, where they differ."""


def contrasts(runs: Iterable[SweepRun], facts: Mapping[str, Reading]) -> list[Contrast]:
    read = [facts_of(run, facts) for run in runs]
    values = {fact: tuple(dict.fromkeys(one[fact] for one in read)) for fact in facts}
    return [Contrast(fact, different) for fact, different in values.items() if len(different) > 1]


def facts_of(run: SweepRun, facts: Mapping[str, Reading] = FACTS) -> dict[str, str]:
    return {fact: UNKNOWN if (value := read(run)) is None else str(value) for fact, read in facts.items()}


@dataclass(frozen=True)
class Side:
    """One build in a comparison of two: its sweeps, one or several, by their start."""

    path: Path
    sweeps: tuple[Results, ...]

    def __str__(self) -> str:
        return f"{self.path} ({len(self.sweeps)} sweep{'s' if len(self.sweeps) > 1 else ''})"

    @cached_property
    def cells(self) -> dict[str, Cell]:
        """The cells that can be compared, by name: closed loop, no control, measured in each of the sweeps.

        In an open loop each run's arrival rates follow its own capacity: such cells differ in load.
        """
        measured = (set(sweep.rounds["cell"].to_list()) for sweep in self.sweeps)
        shared = set.intersection(*measured)
        return {name: cell for name, cell in self.planned.items() if name in shared}

    @cached_property
    def planned(self) -> dict[str, Cell]:
        """The same, as planned in one of the sweeps."""
        planned = (cell for sweep in self.sweeps for cell in sweep.run.plan.cells)
        return {cell.name: cell for cell in planned if not cell.open_loop and not cell.control}

    def latencies(self, cell: Cell) -> list[Rounds]:
        return [sweep.medians(cell.name) for sweep in self.sweeps]

    def ratios(self, cell: Cell) -> list[list[float]] | None:
        """Per sweep and round the latency of `cell` over the baseline's.

        None for the baseline itself, and where a sweep has no round with both.
        """
        base = next((c for c in self.cells.values() if c.group == cell.group and c.mode == BASELINE), None)
        if base is None or base == cell:
            return None
        pairs = [paired(*both) for both in zip(self.latencies(cell), self.latencies(base), strict=True)]
        if not all(own for own, _ in pairs):
            return None
        return [[a / b for a, b in zip(own, other, strict=True)] for own, other in pairs]

    def mean_seconds(self, cell: Cell, column: str) -> float | None:
        """Mean over sweeps of a mean of `Results.cells`; None where a sweep has none."""
        values = [sweep.cells.filter(sweep.cells["cell"] == cell.name)[column][0] for sweep in self.sweeps]
        return None if None in values else sum(values) / len(values)


def read_side(path: Path) -> Side:
    """The sweep in `path`, or all sweeps in the folders of `path`. Raises RowsError where there is none."""
    if (path / RUN_FILE).exists():
        return Side(path, (read_results(path),))
    folders = sorted(found.parent for found in path.glob(f"*/{RUN_FILE}"))
    if not folders:
        raise RunError(
            f"{path} holds no sweep: name a folder that `launchbound sweep` wrote, or one that holds several"
        )
    return Side(path, tuple(sorted(map(read_results, folders), key=lambda sweep: sweep.run.started)))


def swept_in_turn(before: Side, after: Side) -> bool:
    """Whether each sweep of one side was next to its namesake of the other, and none overlapped.

    By start: of the first two sweeps one is of either side, of the next two as well, and so on.
    """
    if len(before.sweeps) != len(after.sweeps):
        return False
    runs = [(sweep.run, side) for side in (before, after) for sweep in side.sweeps]
    runs.sort(key=lambda one: one[0].started)
    apart = all((first[0].ended or "") <= second[0].started for first, second in pairwise(runs))
    return apart and all(
        first[1] is not second[1] for first, second in zip(runs[::2], runs[1::2], strict=True)
    )


def unlike(before: Side, after: Side, force: bool) -> list[Contrast]:
    """The needed facts in which the two sides differ, and the failed gates of each sweep.

    Raises Unlike where there are any, and where a service did not say its machine; with `force` neither.
    Raises it, whatever `force` says, for a sweep on both sides, or a side whose sweeps are not of one build.
    """
    if twice := {s.folder.resolve() for s in before.sweeps} & {s.folder.resolve() for s in after.sweeps}:
        raise Unlike(f"{min(twice)} stands on both sides: name another sweep, of the same build or another")
    for side in (before, after):
        if mixed := contrasts((s.run for s in side.sweeps), {**NEEDED, "commit": _commit}):
            raise Unlike(
                f"the sweeps in {side.path} are not of one build ({'; '.join(map(str, mixed))}): "
                "leave one build's in it"
            )
    sweeps = [*before.sweeps, *after.sweeps]
    if not all(sweep.run.environment.get("cpu") for sweep in sweeps) and not force:
        raise Unlike(
            "a sweep does not say on which machine its service ran: sweep again with a service of this "
            "version, or compare with --force"
        )
    found = contrasts((sweep.run for sweep in sweeps), NEEDED)
    for sweep in sweeps:
        if failed := ", ".join(gate.name for gate in sweep.failed_gates):
            found.append(Contrast(f"failed gates of {sweep.folder}", (failed,)))
    if found and not force:
        layout = any(contrast.fact == LAYOUT for contrast in found)
        remedy = " (LAUNCHBOUND_LINEARS=aten or transposed keeps the layout the same)" if layout else ""
        raise Unlike(
            f"{before.path} and {after.path} are not alike ({'; '.join(map(str, found))}): "
            f"compare like{remedy}, or see with --force what that gives"
        )
    return found


@dataclass(frozen=True)
class Entry:
    """One of several runs on a page; `facts` are all of FACTS, `label` those in which the runs differ."""

    letter: str
    label: str
    colour: str
    facts: dict[str, str]
    findings: Findings

    @property
    def name(self) -> str:
        """'A (bfloat16)'."""
        return f"{self.letter} ({self.label})"

    @property
    def failed(self) -> list[str]:
        return [gate.name for gate in self.findings.results.failed_gates]

    @property
    def valid(self) -> bool:
        return not self.failed

    def verdict(self, group: object) -> Verdict | None:
        """Its answer for a group of cells; None where it has none."""
        return next((one for one in self.findings.verdicts if one.group == group), None)


def best(verdict: Verdict) -> Summary:
    """The mode to ship, that of an answer that is not resolved too; the fastest below 8 rounds."""
    return verdict.shipped or min(verdict.modes, key=lambda one: one.latency.value)


def read_entries(folders: Sequence[Path]) -> list[Entry]:
    """The runs in `folders`, lettered in this order.

    Raises RowsError for a folder that cannot be read or is named twice, above 26 of them, and for runs of
    modules beside runs of language models, which have no cell in common.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise RowsError("a folder is named twice: name each run once")
    if len(folders) > len(LETTERS):
        raise RowsError(f"{len(folders)} runs: one picture takes {len(LETTERS)}, name fewer")
    found = [read_results(folder) for folder in folders]
    if len({one.workload.name for one in found}) > 1:
        raise RowsError("some runs are of a module and some of a language model: name runs of one kind")
    return entries_of(found)


def entries_of(results: Sequence[Results], labels: Sequence[str] | None = None) -> list[Entry]:
    """The runs of `results`, at most 26, lettered in this order; called `labels` where they are given."""
    facts = [facts_of(one.run) for one in results]
    if labels is None:
        naming = [fact for fact in NAMING if len({own[fact] for own in facts}) > 1]
        names = [", ".join(own[fact] for fact in naming) for own in facts]
        labels = [name or one.folder.name for name, one in zip(names, results, strict=True)]
    return [
        Entry(LETTERS[number], label, PALETTE[number % len(PALETTE)], own, Findings(one))
        for number, (one, own, label) in enumerate(zip(results, facts, labels, strict=True))
    ]


def differing(entries: Sequence[Entry], facts: Iterable[str] = FACTS) -> list[str]:
    return [fact for fact in facts if len({entry.facts[fact] for entry in entries}) > 1]


def groups(entries: Sequence[Entry]) -> list[Group]:
    """The closed-loop groups that two runs or more have, by their other conditions and batch size.

    Of a single run, which is what is left of several that failed, all of its groups.
    """
    found = [verdict.group for entry in entries for verdict in entry.findings.verdicts]
    shared = {group for group in found if found.count(group) >= min(2, len(entries))}
    return sorted(shared, key=lambda one: (one[1:4], one[0]))


def reference_of(entries: Sequence[Entry]) -> Entry | None:
    """The run of float32, else the first, where the runs differ in nothing of consequence but precision.

    The layout of linear weights is chosen by timing in each precision.
    """
    alike = ("model", *(fact for fact in NEEDED if fact not in ("dtype", LAYOUT)))
    if not differing(entries, ["dtype"]) or differing(entries, alike):
        return None
    return next((one for one in entries if one.facts["dtype"] == REFERENCE), entries[0])


@dataclass(frozen=True, slots=True)
class RunMode:
    entry: Entry
    summary: Summary

    @property
    def rounds(self) -> Rounds:
        """Its median latencies by round, in seconds."""
        return self.entry.findings.results.medians(self.summary.cell.name)


def between(first: RunMode, second: RunMode) -> tuple[Interval | None, Word]:
    """How many times as fast `second` is as `first` of another run, with the allowance, and in a word.

    No interval below two rounds, and `undecided` below 8.
    """
    before, after = (list(one.rounds.values()) for one in (first, second))
    least = min(len(before), len(after))
    if least < 2:
        return None, "undecided"
    speedup = difference([after], [before], LATENCY_SCATTER).interval()
    change = difference([before], [after], LATENCY_SCATTER).interval()
    return speedup, word_of(change) if least >= MINIMUM_ROUNDS else "undecided"


class Shared:
    """One group of cells in all runs, lists by run; modes are compared with the run `reference`, if any.

    `runs` have it, in the mode that each would ship there, the lowest latency first; `ranked` are the valid
    ones; `alike`: the lowest of several is not told apart from any other.
    """

    def __init__(self, entries: Sequence[Entry], group: Group, reference: Entry | None = None) -> None:
        self.entries = entries
        self.group = group
        self.verdicts = [entry.verdict(group) for entry in entries]
        self.modes = [
            {one.cell.mode: RunMode(entry, one) for one in (verdict.modes if verdict else [])}
            for entry, verdict in zip(entries, self.verdicts, strict=True)
        ]
        self.reference = reference
        self._of_reference = self.modes[list(entries).index(reference)] if reference else {}
        found = [own[best(v).cell.mode] for v, own in zip(self.verdicts, self.modes, strict=True) if v]
        self.runs = sorted(found, key=lambda one: one.summary.latency.value)
        self.ranked = [one for one in self.runs if one.entry.valid]
        others = [one for one in self.ranked[1:] if between(one, self.ranked[0])[1] != "faster"]
        letters = sorted(one.entry.letter for one in others)
        self.near = f" (not apart from {listed(letters)})" if letters else ""
        self.alike = 0 < len(others) == len(self.ranked) - 1

    @property
    def first(self) -> str:
        """'A (bfloat16) with compiled'; only where a run is valid."""
        return f"{self.ranked[0].entry.name} with {self.ranked[0].summary.cell.mode}"

    @property
    def winner(self) -> str:
        """The run with the lowest latency and its mode, and those that it is not apart from."""
        return self.first + self.near if self.ranked else "no run is valid"

    def against_reference(self, mode: str, number: int) -> tuple[Interval | None, Word] | None:
        """How much faster `mode` is in run `number` than in the reference; None where nothing is compared."""
        first, own = self._of_reference.get(mode), self.modes[number].get(mode)
        if first is None or own is None or first is own:
            return None
        return between(first, own)

    @property
    def numbers(self) -> dict[str, Any]:
        runs = [
            {
                "run": one.entry.letter,
                "mode": one.summary.cell.mode,
                "effective": one.summary.effective,
                one.summary.words.seconds: one.summary.latency,
                one.summary.words.rate: one.summary.throughput,
                "speedup": found.speedup if (found := one.summary.comparison) else None,
            }
            for one in self.runs
        ]
        return {
            "batch_size": self.group[0],
            "conditions": conditions(self.group),
            "winner": self.winner,
            "runs": runs,
        }

    @property
    def precision_numbers(self) -> dict[str, Any]:
        """What precision buys each mode, for programs."""
        modes = []
        for mode in dict.fromkeys(mode for own in self.modes for mode in own):
            found = [self.against_reference(mode, number) for number in range(len(self.entries))]
            runs = [
                {"run": entry.letter, "speedup": one and one[0], "word": one and one[1]}
                for entry, one in zip(self.entries, found, strict=True)
            ]
            modes.append({"mode": mode, "runs": runs})
        return {"batch_size": self.group[0], "modes": modes}
