"""A/A tests: the reports' comparison finds no difference of a mode to itself, nor between equal sweeps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Cell, Plan, ladder_cells
from loadtests.run.rows import read_rows
from loadtests.run.sweep import run_sweep
from service.measure.rounds import Log, in_rounds
from service.proof.rows import Check, Row, count_row
from service.proof.running_service import RunningService
from service.statistics.choice import Comparison, compare, paired
from service.statistics.intervals import mean_interval

REPEATS = 40
NEEDED_ALIKE = 35 / 40
REQUESTS = 2
SHORT = 6
SWEEP_BATCHES = 2
"""Of those served, the smallest."""

SWEEP_TOKENS = 8
NEEDED_SHARE = 0.9

Medians = dict[str, dict[int, float]]
"""Median latency in seconds by cell and round."""


def measure_itself(service: RunningService, log: Log) -> dict[str, list[Comparison]]:
    """Eager compared with eager REPEATS times, the two shuffled in every round."""
    found = []
    with service.connection() as connection:

        def latency() -> float:
            answers = [connection.generate(BASELINE, SHORT) for _ in range(REQUESTS)]
            return float(median(timings["latency_seconds"] for timings in answers))

        for repeat in range(REPEATS):
            log(f"comparison {repeat + 1} of {REPEATS}")
            one, other = in_rounds({0: latency, 1: latency}, MINIMUM_ROUNDS, f"itself/{repeat}").values()
            found.append(compare(dict(enumerate(one)), dict(enumerate(other))))
    return {"comparisons": found}


def judge_itself(found: Mapping[str, list[Comparison]]) -> list[Row]:
    """How many of the comparisons find no difference."""
    comparisons = found["comparisons"]
    alike = sum(comparison.word == "no detectable difference" for comparison in comparisons)
    spread = max(abs(math.log(comparison.speedup.value)) for comparison in comparisons)
    needed = math.ceil(NEEDED_ALIKE * len(comparisons))
    note = f"largest ratio seen {math.exp(spread):.3f}; {MINIMUM_ROUNDS} rounds of {REQUESTS} requests"
    return [count_row("eager against eager: no detectable difference", alike, len(comparisons), needed, note)]


def measure_twice(service: RunningService, log: Log) -> dict[str, list[float]]:
    """The same sweep twice: per cell, the differences of its log speed-ups over eager, round by round."""
    if BASELINE not in service.modes:
        raise RuntimeError(f"every ratio is to '{BASELINE}': serve it")
    cells = ladder_cells(service.modes, service.batch_sizes[:SWEEP_BATCHES], SWEEP_TOKENS)
    plan = Plan(preset="selftest", seed=7, rounds=MINIMUM_ROUNDS, cells=tuple(cells), warmup_passes_most=3)
    sweeps = [_sweep(service, plan, number, log) for number in (1, 2)]
    return {
        cell.name: differences([(sweep[baseline], sweep[cell.name]) for sweep in sweeps])
        for cell in plan.cells
        if cell.name != (baseline := _baseline_name(plan, cell))
    }


def judge_twice(found: Mapping[str, list[float]]) -> list[Row]:
    """How many cells' speed-ups do not differ between the sweeps."""
    means = {cell: mean_interval(values) for cell, values in found.items()}
    moved = {cell: mean for cell, mean in means.items() if not mean.low <= 0 <= mean.high}
    shown = ", ".join(f"{cell} by {math.expm1(mean.value):+.1%}" for cell, mean in moved.items())
    needed = math.ceil(NEEDED_SHARE * len(means))
    note = f"moved: {shown}" if moved else "no cell moved"
    alike = len(means) - len(moved)
    return [count_row("the same sweep twice: equal ratios to eager", alike, len(means), needed, note)]


def _baseline_name(plan: Plan, cell: Cell) -> str:
    """The plan's baseline cell with the batch size of `cell`."""
    return next(
        c.name for c in plan.cells if c.mode == BASELINE and not c.control and c.batch_size == cell.batch_size
    )


def differences(sweeps: list[tuple[dict[int, float], dict[int, float]]]) -> list[float]:
    """Log speed-up of the second sweep less that of the first, rounds paired by their number."""
    logs = [
        {number: math.log(baseline[number] / cell[number]) for number in baseline.keys() & cell.keys()}
        for baseline, cell in sweeps
    ]
    first, second = paired(*logs)
    return [b - a for a, b in zip(first, second, strict=True)]


def _sweep(service: RunningService, plan: Plan, number: int, log: Log) -> Medians:
    """Run the plan with the load generator; its console output is dropped."""
    log(f"sweep {number} of 2: {plan.requests} requests and warm-up")
    with TemporaryDirectory(prefix="launchbound-") as folder, Path(folder, "console.log").open("w") as output:
        result = run_sweep(service.url, plan, Path(folder), console=Console(file=output), exporter_port=0)
        if not result.run.complete:
            raise RuntimeError(f"sweep {number} stopped: {result.run.stopped_because}")
        rows = [row for row in read_rows(Path(folder)) if row.stage == "measure" and row.ok]
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row.cell, {}).setdefault(row.round, []).append(row.latency_seconds)
    return {cell: {n: median(v) for n, v in rounds.items()} for cell, rounds in found.items()}


ITSELF = Check(measure_itself, judge_itself)
TWICE = Check(measure_twice, judge_twice)
