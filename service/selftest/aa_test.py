"""Does the comparison that reports use find differences where there are none, and the same ones twice?"""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console

from loadtests.plan.cells import BASELINE, MINIMUM_ROUNDS, Plan, ladder_cells
from loadtests.report.comparison import compare, paired
from loadtests.run.rows import read_rows
from loadtests.run.sweep import run_sweep
from service.measure.rounds import Say
from service.selftest.counting import at_least
from service.selftest.results import CheckResult
from service.selftest.running_service import Connection, Served
from service.statistics.intervals import Interval, mean_interval

REPEATS, NEEDED = 40, 35
REQUESTS = 2
SHORT = 6
SWEEP_BATCHES = 2
"""The smallest so many of those served."""

SWEEP_TOKENS = 8
NEEDED_SHARE = 0.9

Medians = dict[str, dict[int, float]]
"""By cell, by round, the median latency."""


def against_itself(served: Served, say: Say) -> list[CheckResult]:
    """Eager compared with eager, forty times, each of the eight rounds in a seeded order."""
    alike, values = 0, []
    with served.connection() as connection:
        for repeat in range(REPEATS):
            say(f"comparison {repeat + 1} of {REPEATS}")
            comparison = compare(*_two_arms(connection, repeat))
            alike += comparison.word == "no detectable difference"
            values.append(comparison.speedup.value)
    spread = max(abs(math.log(value)) for value in values)
    note = f"largest ratio seen {math.exp(spread):.3f}; {MINIMUM_ROUNDS} rounds of {REQUESTS} requests"
    return [at_least("eager against eager: no detectable difference", alike, REPEATS, NEEDED, note)]


def _two_arms(connection: Connection, repeat: int) -> tuple[dict[int, float], dict[int, float]]:
    arms: tuple[dict[int, float], dict[int, float]] = {}, {}
    for number in range(MINIMUM_ROUNDS):
        order = [0, 1]
        Random(f"itself/{repeat}/{number}").shuffle(order)
        for which in order:
            found = [connection.generate(BASELINE, SHORT)["latency_seconds"] for _ in range(REQUESTS)]
            arms[which][number] = median(found)
    return arms


def twice(served: Served, say: Say) -> list[CheckResult]:
    """The same sweep twice; per cell, the two log ratios to eager must not differ."""
    if BASELINE not in served.modes:
        raise RuntimeError(f"every ratio is to '{BASELINE}': serve it")
    cells = ladder_cells(served.modes, served.batch_sizes[:SWEEP_BATCHES], SWEEP_TOKENS)
    plan = Plan(preset="selftest", seed=7, rounds=MINIMUM_ROUNDS, cells=tuple(cells), warmup_passes_most=3)
    sweeps = [_sweep(served, plan, number, say) for number in (1, 2)]
    differences = {}
    for cell in plan.cells:
        baseline = next(
            c.name
            for c in plan.cells
            if c.mode == BASELINE and not c.control and c.batch_size == cell.batch_size
        )
        if cell.name != baseline:
            differences[cell.name] = _difference([(sweep[baseline], sweep[cell.name]) for sweep in sweeps])
    inside = [name for name, difference in differences.items() if difference.low <= 0 <= difference.high]
    moved = ", ".join(
        f"{name} by {math.expm1(differences[name].value):+.1%}" for name in differences if name not in inside
    )
    needed = math.ceil(NEEDED_SHARE * len(differences))
    note = f"moved: {moved}" if moved else "no cell moved"
    return [
        at_least("the same sweep twice: equal ratios to eager", len(inside), len(differences), needed, note)
    ]


def _difference(sweeps: list[tuple[dict[int, float], dict[int, float]]]) -> Interval:
    """Log speed-up of the second sweep less that of the first, rounds paired by their number."""
    logs = [
        {number: math.log(baseline[number] / cell[number]) for number in baseline.keys() & cell.keys()}
        for baseline, cell in sweeps
    ]
    first, second = paired(*logs)
    return mean_interval([b - a for a, b in zip(first, second, strict=True)])


def _sweep(served: Served, plan: Plan, number: int, say: Say) -> Medians:
    """Run the plan with the load generator itself; its own output is not shown."""
    say(f"sweep {number} of 2: {plan.requests} requests and warm-up")
    with TemporaryDirectory(prefix="launchbound-") as folder, Path(folder, "console.log").open("w") as log:
        result = run_sweep(served.url, plan, Path(folder), console=Console(file=log), exporter_port=0)
        if not result.run.complete:
            raise RuntimeError(f"sweep {number} stopped: {result.run.stopped_because}")
        rows = [row for row in read_rows(Path(folder)) if row.stage == "measure" and row.ok]
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row.cell, {}).setdefault(row.round, []).append(row.latency_seconds)
    return {cell: {n: median(v) for n, v in rounds.items()} for cell, rounds in found.items()}
