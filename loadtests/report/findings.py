"""From tables to the answer: per cell a summary and its speed-ups, per batch size the mode to ship."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from loadtests.plan.cells import BASELINE, Cell, Group
from loadtests.report.load import LoadFindings
from loadtests.report.results import PARTS, Results
from loadtests.report.summaries import (
    NOTHING,
    Payback,
    Summary,
    Verdict,
    bucket_of,
    cost_of,
    is_compiled,
    pay_back,
    phase_of,
)
from loadtests.report.words import Words
from loadtests.run.run_file import SERIES_FILE, SweepRun
from service.modes import MODES, doubles
from service.statistics.boundedness import (
    PROVED,
    UNPROVED,
    CrossoverSpan,
    LeftOpen,
    crossover,
    crossover_span,
)
from service.statistics.choice import BASELINE as PLAIN
from service.statistics.choice import (
    CONFIDENCE,
    Choice,
    Comparison,
    Rounds,
    choose_each,
    compare,
    is_disturbed,
)
from service.statistics.intervals import Interval, geometric_mean


def typical(rounds: Rounds) -> Interval:
    """The geometric mean of the rounds' medians with its t interval; ratios of it are the speed-ups."""
    return geometric_mean(list(rounds.values()))


class Findings:
    """The statistics of `results`, each computed on first use."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.load = LoadFindings(results)
        known = set(results.rounds["cell"].to_list())
        self._cells = [cell for cell in results.run.plan.cells if cell.name in known]

    @property
    def words(self) -> Words:
        return self.results.words

    @cached_property
    def selftest(self) -> Document | None:
        """That of the sweep's machine and commit; None without one."""
        return find_selftest(self.results.folder, self.results.run)

    @cached_property
    def proof(self) -> Proof:
        return proof(self.selftest, self.results.run, self.estimated)

    @cached_property
    def left_open(self) -> LeftOpen:
        """What samples may get wrong here, however many there are."""
        return left_open(self.selftest, self.results.run)

    @cached_property
    def summaries(self) -> list[Summary]:
        phases = self.results.phases_by_cell()
        return [self._summary(cell, phases[cell.name]) for cell in self._cells]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """One per closed-loop group that has the baseline, by batch size."""
        groups = dict.fromkeys(s.cell.group for s in self.summaries if not s.cell.open_loop)
        verdicts = [self._verdict(group) for group in groups if self._find(group, BASELINE) is not None]
        return sorted(verdicts, key=lambda verdict: (verdict.group[1:4], verdict.batch_size))

    @cached_property
    def main(self) -> list[Verdict]:
        """The verdicts that differ in batch size only, under the plan's first cell's other conditions."""
        if not self.verdicts:
            return []
        main = self.results.run.plan.main_groups
        return [v for v in self.verdicts if v.group in main] or self.verdicts[:1]

    @property
    def others(self) -> list[Verdict]:
        """Verdicts under other conditions: longer prompts, more tokens, concurrency."""
        return [verdict for verdict in self.verdicts if verdict not in self.main]

    @cached_property
    def crossover(self) -> CrossoverSpan:
        """Where eager's kernels take as long as dispatch in its main phase; without intervals no ends."""
        phases = {v.batch_size: v.baseline.main for v in self.main}
        known = {batch: phase.index for batch, phase in phases.items() if phase.index is not None}
        spans = {batch: phase.interval for batch, phase in phases.items() if phase.interval}
        ends = crossover_span(spans if spans.keys() == known.keys() else {})
        return CrossoverSpan(crossover(known), ends.earliest, ends.latest)

    @property
    def estimated(self) -> bool:
        """Whether samples split the steps of the baseline, as on a CPU."""
        return any(verdict.baseline.estimated for verdict in self.main)

    @cached_property
    def left_out(self) -> list[str]:
        """Modes of the ladder that this device runs as none other, and that were not swept."""
        swept = {cell.mode for cell in self._cells}
        others = doubles(MODES, self.results.device)
        return [mode for mode in MODES if mode not in swept and mode not in others]

    @cached_property
    def _choices(self) -> dict[Group, Choice | None]:
        """By group, with an error of 5 % over the batch sizes of the same conditions and the checks."""
        families: dict[Any, dict[Group, dict[str, Rounds]]] = {}
        for cell in self._cells:
            if not cell.control and not cell.open_loop:
                groups = families.setdefault(cell.group[1:], {})
                groups.setdefault(cell.group, {})[cell.mode] = self.results.medians(cell.name)
        checks = len(self.results.run.plan.interim_checks)
        found = (choose_each(groups, checks) for groups in families.values())
        return {group: choice for family in found for group, choice in family.items()}

    def _find(self, group: Group, mode: str) -> Cell | None:
        return next((c for c in self._cells if (c.group, c.mode, c.control) == (group, mode, False)), None)

    def _plain(self, group: Group) -> Cell | None:
        """What the answer is against: the best mode without a compiler that was swept."""
        return self._find(group, PLAIN) or self._find(group, BASELINE)

    def compared(self, reference: Cell | None, cell: Cell) -> Comparison | None:
        """The speed-up of `cell` over `reference`; None where it is the cell itself or no round has both."""
        if reference is None or reference == cell:
            return None
        medians = self.results.medians(reference.name), self.results.medians(cell.name)
        return compare(*medians, CONFIDENCE) if medians[0].keys() & medians[1].keys() else None

    def _summary(self, cell: Cell, rows: pl.DataFrame) -> Summary:
        means = self.results.cells.row(by_predicate=pl.col("cell") == cell.name, named=True)
        same = ("requests", "latency_p95_seconds", "prompt_tokens", "padded_prompt_tokens", "attended_tokens")
        estimated = means["estimated"]
        phases = tuple(
            phase_of(rows, phase, self.results.samples[phase].get(cell.name), estimated, self.left_open)
            for phase in self.results.workload.phases
        )
        return Summary(
            cell=cell,
            effective=rows["effective_mode"][0],
            **{name: means[name] for name in same},
            latency=typical(self.results.medians(cell.name)),
            mean_seconds=means["latency_mean_seconds"],
            throughput=typical(self.results.medians(cell.name, self.words.rate)),
            first_token=self._first_token(cell),
            parts={part: means[f"{part}_seconds_mean"] for part in PARTS},
            total_seconds=means["total_seconds_mean"],
            outside_seconds=means["outside_seconds_mean"],
            phases=phases,
            estimated=estimated,
            disturbed=is_disturbed(means["involuntary_switches"], means["steps"]),
            comparison=self.compared(self._find(cell.group, BASELINE), cell),
            against_plain=None if cell.control else self.compared(self._plain(cell.group), cell),
            payback=self._payback(cell),
        )

    def _first_token(self, cell: Cell) -> Interval | None:
        if not self.words.has_tokens:
            return None
        found = self.results.medians(cell.name, "time_to_first_token_seconds")
        return None if None in found.values() else typical(found)

    def _verdict(self, group: Group) -> Verdict:
        summaries = tuple(s for s in self.summaries if s.cell.group == group)
        control = next((s.comparison for s in summaries if s.cell.control), None)
        noise = control.speedup if control else None
        return Verdict(group, summaries, noise, self._choices.get(group))

    def _payback(self, cell: Cell) -> Payback:
        """Against the best mode without a compiler."""
        run = self.results.run
        status = run.mode(cell.mode)
        if cell.control or not is_compiled(status):
            return NOTHING
        reference = self._plain(cell.group)
        comparison = self.compared(reference, cell)
        if reference is None or comparison is None:
            return Payback.of_none(None, None, "unknown")
        cost = cost_of(status, bucket_of(cell.batch_size, run.engine.get("batch_buckets") or []))
        plain, own = (typical(self.results.medians(one.name)).value for one in (reference, cell))
        return pay_back(reference.mode, comparison, plain, own, cost)


# Whether a selftest proves the split into dispatch and kernel on a sweep's machine.

SELFTEST_FILE = "selftest.json"


@dataclass(frozen=True, slots=True)
class Bound:
    """An error of the split: how the names of the `rows` begin that bound it, and what each `should` read."""

    rows: tuple[str, ...]
    should: float


BOUNDS = (
    Bound(("injected kernel time that arrives as kernel", "injected host time that arrives as host"), 1.0),
    Bound(("kernel share at 997 samples per second less that at none",), 0.0),
)
"""Of the classes, and of the sampler's rate: neither says anything of the other."""

Document = dict[str, Any]
"""The contents of a `selftest.json`."""


def find_selftest(results: Path, run: SweepRun) -> Document | None:
    """The newest selftest of the same commit, processor and device in the folders beside `results`.

    Of a start of a series, beside that. Only a complete one counts: every check, no uncommitted change,
    default model, dtype and modes. One that ran the sweep's kernels (`ran_alike`) goes before newer ones
    that did not. None: no such selftest, or the sweep itself had uncommitted changes, of which none can be.
    """
    if run.environment.get("dirty"):
        return None
    beside = results.parents[(results.parent / SERIES_FILE).is_file()]
    fitting = [found for found in _documents(beside) if _stands_for(found, run)]
    return max(fitting, key=lambda one: (ran_alike(one, run), str(one.get("created", ""))), default=None)


def _documents(folder: Path) -> Iterator[Document]:
    for path in folder.glob(f"*/{SELFTEST_FILE}"):
        document = msgspec.json.decode(path.read_bytes())
        if isinstance(document, dict):
            yield document


def _stands_for(found: Mapping[str, Any], run: SweepRun) -> bool:
    """Documents of the first format do not say whether they are complete, and do not count."""
    here = run.environment
    device = run.engine.get("device_name")
    return (
        found.get("complete") is True
        and found.get("commit") is not None
        and all(found.get(key) == here.get(key) for key in ("commit", "cpu", "cpu_features"))
        and (device is None or found.get("device") == device)
    )


def ran_alike(found: Mapping[str, Any], run: SweepRun) -> bool:
    """Whether the selftest ran the sweep's modes and kernels.

    The same torch, whose functions have the same names; model, dtype, threads, linear weights' layout.
    """
    engine = run.engine
    here = {name: engine.get(name) for name in ("torch", "model", "dtype", "threads")}
    here["linears"] = (engine.get("linears") or {}).get("layout")
    alike = all(found.get(key) == value for key, value in here.items())
    return alike and set(run.plan.modes) <= set(found.get("modes") or [])


def left_open(found: Mapping[str, Any] | None, run: SweepRun) -> LeftOpen:
    """What samples may get wrong in `run`, however many there are.

    PROVED of each of BOUNDS, or more where this machine's selftest does not exclude more. UNPROVED where
    there is no selftest; never less where it is of other kernels, or lacks the rows that bound an error.
    """
    if found is None:
        return UNPROVED
    least = PROVED if ran_alike(found, run) else UNPROVED
    of_each = zip(BOUNDS, least, UNPROVED, strict=True)
    return LeftOpen(*(max(known, _error(found["rows"], bound, none)) for bound, known, none in of_each))


def _error(rows: list[Mapping[str, Any]], bound: Bound, without_rows: float) -> float:
    """The most that the intervals of the rows leave open; an end that is not known leaves open anything."""
    ends = [row.get(end) for row in rows if row["name"].startswith(bound.rows) for end in ("low", "high")]
    return max((1.0 if end is None else abs(end - bound.should) for end in ends), default=without_rows)


SPLIT_CHECKS = {
    "injected", "sampling-rate", "plain-kernels", "unclassified", "instructions", "served-samples",
}  # fmt: skip
"""The selftest's checks of the split: one that broke leaves a failed row of its name."""

SPLIT_ROWS = (
    *(start for bound in BOUNDS for start in bound.rows),
    "kernel time equal in the plain modes",
    "samples in code of no class",
    "instructions in kernels",
    "host instructions",
    "kernel share that a service answers with less that in process",
)
"""What the names of a selftest's rows about the split begin with."""

NOT_PROVED = "Not proved on this machine"


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether the split is proved, a sentence where it is not, and what a report says of the selftest.

    `proved` None: the device measures both parts, or neither, and there is nothing to prove.
    """

    proved: bool | None
    missing: str | None
    selftest: str


def proof(found: Document | None, run: SweepRun, estimated: bool) -> Proof:
    """What backs the split of `run`: a selftest of its machine and commit.

    What was sampled in the run's own engine gives the split and its interval, and so cannot prove it.
    """
    selftest = "not run on this machine and commit (launchbound selftest)"
    if found is not None:
        outcome = "FAILED" if found["outcome"] == "failed" else found["outcome"]
        selftest = f"{outcome}: {found['detail']}"
    if not estimated:
        return Proof(None, None, selftest)
    missing = _missing(found, run)
    return Proof(missing is None, missing and f"{NOT_PROVED}: {missing}.", selftest)


def _missing(found: Document | None, run: SweepRun) -> str | None:
    """What there is instead of a proof; None where a complete selftest proves the split.

    It has to be of the run's kernels and modes and to have the rows that bound the interval, and every row
    about the split that could be measured must have passed: an undecided one does not count.
    """
    if found is None:
        return "this run has no selftest of its machine and commit beside it (launchbound selftest makes one)"
    if not ran_alike(found, run):
        return (
            "its selftest is of another torch, model, dtype, thread count, layout of linear weights or modes"
        )
    rows = [row for row in found["rows"] if row["name"].startswith(SPLIT_ROWS) or row["name"] in SPLIT_CHECKS]
    measured = [row for row in rows if row["verdict"] != "not measurable here"]
    if not all(any(row["name"].startswith(bound.rows) for row in measured) for bound in BOUNDS):
        return "its selftest has no row that bounds one of the split's errors"
    passed = sum(row["verdict"] == "pass" for row in measured)
    if passed == len(measured):
        return None
    return f"of its selftest's {len(measured)} rows about the split {passed} passed"
