"""From tables to the answer: per cell a summary and its speed-ups, per batch size the mode to ship."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import polars as pl

from loadtests.plan.cells import BASELINE, Cell, Group
from loadtests.report.load import LoadFindings
from loadtests.report.proof import Document, Proof, find_selftest, left_open, proof
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
from service.modes import MODES, doubles
from service.records import PHASES
from service.statistics.boundedness import CrossoverSpan, LeftOpen, crossover, crossover_span
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
        """Where eager's kernels take as long as dispatch in decode; ends are unknown without intervals."""
        decodes = {v.batch_size: v.baseline.decode for v in self.main}
        known = {batch: decode.index for batch, decode in decodes.items() if decode.index is not None}
        spans = {batch: decode.interval for batch, decode in decodes.items() if decode.interval}
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
        samples = {phase: self.results.samples[phase].get(cell.name) for phase in PHASES}
        prefill, decode = (
            phase_of(rows, phase, samples[phase], estimated, self.left_open) for phase in PHASES
        )
        first_tokens = self.results.medians(cell.name, "time_to_first_token_seconds")
        return Summary(
            cell=cell,
            effective=rows["effective_mode"][0],
            **{name: means[name] for name in same},
            latency=typical(self.results.medians(cell.name)),
            mean_seconds=means["latency_mean_seconds"],
            tokens_per_second=typical(self.results.medians(cell.name, "tokens_per_second")),
            first_token=None if None in first_tokens.values() else typical(first_tokens),
            parts={part: means[f"{part}_seconds_mean"] for part in PARTS},
            total_seconds=means["total_seconds_mean"],
            outside_seconds=means["outside_seconds_mean"],
            prefill=prefill,
            decode=decode,
            estimated=estimated,
            disturbed=is_disturbed(means["involuntary_switches"], means["steps"]),
            comparison=self.compared(self._find(cell.group, BASELINE), cell),
            against_plain=None if cell.control else self.compared(self._plain(cell.group), cell),
            payback=self._payback(cell),
        )

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
            return Payback(None, None, "unknown", "unknown")
        cost = cost_of(status, bucket_of(cell.batch_size, run.engine.get("batch_buckets") or []))
        plain, own = (typical(self.results.medians(one.name)).value for one in (reference, cell))
        return pay_back(reference.mode, comparison, plain, own, cost)
