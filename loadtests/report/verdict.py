"""From tables to the answer: per cell a summary and its speed-up, per batch size the mode to ship and why."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import polars as pl

from loadtests.plan.cells import BASELINE, Cell
from loadtests.report.comparison import (
    Comparison,
    ModeChoice,
    choose,
    compare,
    noise_factor,
    payback_requests,
    typical,
)
from loadtests.report.results import PARTS, Results
from service.statistics.boundedness import Bound, Crossover, bound, crossover, device_bound_index
from service.statistics.disturbance import is_disturbed
from service.statistics.intervals import Interval

Payback = int | Literal["never", "undecided", "unknown", "nothing to pay back"]

Group = tuple[int, str, int, int, float | None]
"""Batch size, prompt set, new tokens, concurrency, load: what cells that are compared have in common."""


def group_of(cell: Cell) -> Group:
    """What `cell` shares with those it is compared with."""
    return (cell.batch_size, cell.prompt_set, cell.new_tokens, cell.concurrency, cell.load)


@dataclass(frozen=True, slots=True)
class Summary:
    """One cell over all rounds. `parts` are mean seconds per request, None where this device has none.

    `upper_estimate`: kernel, and with it `index`, are upper estimates (the residual of a CPU).
    `comparison` is against the baseline cell of the same group; None for that cell itself or without one.
    `payback` is the number of requests until the mode's warm-up is paid back, or why there is none.
    """

    cell: Cell
    effective: str | None
    requests: int
    latency: Interval
    latency_p95_seconds: float
    tokens_per_second: Interval
    parts: dict[str, float | None]
    total_seconds: float | None
    outside_seconds: float | None
    index: float | None
    upper_estimate: bool
    disturbed: bool
    comparison: Comparison | None
    payback: Payback

    @property
    def runs_as(self) -> str | None:
        """The effective mode, where it differs from the mode."""
        return self.effective if self.effective != self.cell.mode else None

    @property
    def is_baseline(self) -> bool:
        """Whether it is the cell that others are compared with."""
        return self.cell.mode == BASELINE and not self.cell.control


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one group: which mode to ship. `choice` None: too few rounds to decide."""

    group: Group
    summaries: tuple[Summary, ...]
    noise: float
    choice: ModeChoice | None

    @property
    def batch_size(self) -> int:
        """Batch size of the group."""
        return self.group[0]

    @property
    def baseline(self) -> Summary:
        """Eager's cell."""
        return next(summary for summary in self.summaries if summary.is_baseline)

    @property
    def shipped(self) -> Summary | None:
        """The cell of the mode to ship."""
        if self.choice is None:
            return None
        return self.of(self.choice.ship)

    def of(self, mode: str) -> Summary:
        """The cell of `mode`, not the control."""
        return next(s for s in self.summaries if s.cell.mode == mode and not s.cell.control)

    @property
    def modes(self) -> list[Summary]:
        """All but the control cell, in the ladder's order."""
        return [summary for summary in self.summaries if not summary.cell.control]

    @property
    def bound(self) -> Bound | None:
        """Whether the baseline is launch- or kernel-bound here: how much faster other modes can be."""
        return bound(self.baseline.index)


class Findings:
    """The statistics of `results`, each computed on first use."""

    def __init__(self, results: Results) -> None:
        self.results = results
        measured = set(results.rounds["cell"].to_list())
        self._cells = [cell for cell in results.run.plan.cells if cell.name in measured]

    @cached_property
    def summaries(self) -> list[Summary]:
        """One per measured cell, in the plan's order."""
        return [self._summary(cell) for cell in self._cells]

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """One per closed-loop group that has the baseline, by batch size."""
        groups = dict.fromkeys(group_of(s.cell) for s in self.summaries if s.cell.load is None)
        verdicts = [self._verdict(group) for group in groups if self._baseline(group) is not None]
        return sorted(verdicts, key=lambda verdict: (verdict.group[1:4], verdict.batch_size))

    @cached_property
    def main(self) -> list[Verdict]:
        """The verdicts that differ in batch size only, under the plan's first cell's other conditions."""
        if not self.verdicts:
            return []
        conditions = group_of(self._cells_of_plan()[0])[1:]
        return [v for v in self.verdicts if v.group[1:] == conditions] or self.verdicts[:1]

    @cached_property
    def others(self) -> list[Verdict]:
        """Verdicts under other conditions: longer prompts, more tokens, concurrency."""
        return [verdict for verdict in self.verdicts if verdict not in self.main]

    @cached_property
    def crossover(self) -> Crossover:
        """Where eager turns from launch-bound to kernel-bound."""
        indices = {v.batch_size: v.baseline.index for v in self.main}
        return crossover({batch: index for batch, index in indices.items() if index is not None})

    @property
    def upper_estimate(self) -> bool:
        """Whether the baseline's kernel times, and so the crossover, are upper estimates."""
        return any(verdict.baseline.upper_estimate for verdict in self.main)

    def _cells_of_plan(self) -> list[Cell]:
        return [cell for cell in self.results.run.plan.cells if cell.load is None] or self._cells

    def _find(self, group: Group, mode: str, control: bool = False) -> Cell | None:
        key = (group, mode, control)
        return next((c for c in self._cells if (group_of(c), c.mode, c.control) == key), None)

    def _baseline(self, group: Group) -> Cell | None:
        return self._find(group, BASELINE)

    def _noise(self, group: Group) -> float:
        baseline = self._baseline(group)
        control = self._find(group, BASELINE, control=True)
        if baseline is None:
            return 1.0
        return noise_factor(
            self.results.medians(baseline.name), self.results.medians(control.name) if control else None
        )

    def _summary(self, cell: Cell) -> Summary:
        means = self.results.cells.row(by_predicate=pl.col("cell") == cell.name, named=True)
        rounds = self.results.medians(cell.name)
        baseline = self._baseline(group_of(cell))
        comparison = None
        latency = typical(rounds)
        reference = self.results.medians(baseline.name) if baseline else {}
        if baseline != cell and reference.keys() & rounds.keys():
            noise = 1.0 if cell.control else self._noise(group_of(cell))
            comparison = compare(reference, rounds, noise)
        effective = self.results.rounds.filter(pl.col("cell") == cell.name)["effective_mode"][0]
        parts = {part: means[f"{part}_seconds_mean"] for part in PARTS}
        return Summary(
            cell=cell,
            effective=effective,
            requests=means["requests"],
            latency=latency,
            latency_p95_seconds=means["latency_p95_seconds"],
            tokens_per_second=typical(self.results.medians(cell.name, "tokens_per_second")),
            parts=parts,
            total_seconds=means["total_seconds_mean"],
            outside_seconds=means["outside_seconds_mean"],
            index=device_bound_index(parts["kernel"], parts["dispatch"]),
            upper_estimate=means["kernel_residual"],
            disturbed=is_disturbed(means["involuntary_switches"], means["steps"]),
            comparison=comparison,
            payback=self._payback(cell, comparison, typical(reference) if reference else latency, latency),
        )

    def _verdict(self, group: Group) -> Verdict:
        summaries = tuple(s for s in self.summaries if group_of(s.cell) == group)
        rounds = {s.cell.mode: self.results.medians(s.cell.name) for s in summaries if not s.cell.control}
        noise = self._noise(group)
        choice = choose(rounds, noise)
        return Verdict(group, summaries, noise, choice)

    def _payback(
        self, cell: Cell, comparison: Comparison | None, baseline: Interval, own: Interval
    ) -> Payback:
        status = self.results.run.mode(cell.mode)
        if comparison is None or not status.get("compile_seconds"):
            return "nothing to pay back"
        if comparison.word != "faster":
            return "undecided" if comparison.word == "undecided" else "never"
        requests = payback_requests(
            status.get("warmup_seconds"),
            self.results.run.mode(BASELINE).get("warmup_seconds"),
            baseline.value,
            own.value,
        )
        return "unknown" if requests is None else requests
