"""How often a sweep's verdict is right, by simulated sweeps that stop and judge by the project's own rules.

`python -m loadtests.simulation [SEEDS]` prints the table of docs/method.md; it measures nothing of a machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from loadtests.plan.cells import Cell, Plan, ladder_cells
from loadtests.plan.presets import Preset, make_plan
from loadtests.run.decisions import Latencies, rounds
from service.statistics.choice import Comparison, compare

BASELINE, OTHER = "eager", "compiled"

DRIFT_ROUNDS = 7.0
"""A drift comes back after so many rounds; it goes on within a round as well."""

GROUPS = len(make_plan("standard").batch_sizes)
"""A round of the standard plan has so many groups, one after the other; only one of them is simulated."""


@dataclass(frozen=True, slots=True)
class World:
    """A machine. Scatters are standard deviations of logarithms, `drift` is an amplitude.

    `visit` is what all requests of one visit of a cell share and no other visit has: what a paired comparison
    has to average out. `request` is each request's own. A share `spikes` of the requests takes 40 % longer,
    and so does a share `bursts` of the visits, all of it.
    """

    visit: float
    request: float = 0.03
    drift: float = 0.0
    spikes: float = 0.0
    bursts: float = 0.0


@dataclass(frozen=True, slots=True)
class Rates:
    """Of all sweeps: the share of each word, of intervals that hold the true ratio, and mean rounds."""

    alike: float
    faster: float
    slower: float
    covered: float
    rounds: float


def fixed(count: int) -> Plan:
    """Two modes at one batch size, `count` rounds, and requests per visit as in the standard plan."""
    return Plan(preset="own", seed=0, rounds=count, cells=_cells(make_plan("standard")))


def adaptive(preset: Preset = "standard") -> Plan:
    """The same with the rounds, looks and requests per visit of this preset."""
    plan = make_plan(preset)
    return Plan(preset="own", seed=0, rounds=plan.rounds, rounds_most=plan.rounds_most, cells=_cells(plan))


def _cells(plan: Plan) -> tuple[Cell, ...]:
    return tuple(ladder_cells((BASELINE, OTHER), (1,), requests=plan.cells[0].requests))


def swept(plan: Plan, world: World, ratio: float, seed: int) -> tuple[Comparison, int]:
    """The verdict on two modes, the first of which takes `ratio` times as long, and the rounds it took.

    The rounds and their order, when to stop and how to judge are those of a real sweep.
    """
    random, latencies, last = Random(f"simulation/{seed}"), Latencies(), 0
    names = {cell.mode: cell.name for cell in plan.cells if not cell.control}
    for number, cells in rounds(plan, latencies, lambda _: None):
        last = number
        for place, cell in enumerate(cells):
            phase = 2 * math.pi * (number + place / len(cells) / GROUPS) / DRIFT_ROUNDS
            shared = world.drift * math.sin(phase + seed) + random.gauss(0, world.visit)
            level = math.log(ratio if cell.mode == BASELINE else 1.0) + shared + _slower(world.bursts, random)
            for _ in range(cell.requests):
                own = random.gauss(0, world.request) + _slower(world.spikes, random)
                latencies.add(cell.name, number, math.exp(level + own))
    first, second = (latencies.medians(names[mode]) for mode in (BASELINE, OTHER))
    return compare(first, second, plan.confidence), last


def _slower(share: float, random: Random) -> float:
    """40 % slower, as a logarithm, with the chance `share`."""
    return math.log(1.4) if random.random() < share else 0.0


def rates(plan: Plan, world: World, ratio: float, seeds: int) -> Rates:
    """The rates over `seeds` simulated sweeps."""
    found = [swept(plan, world, ratio, seed) for seed in range(seeds)]
    words = [comparison.word for comparison, _ in found]
    covered = sum(one.speedup.low <= ratio <= one.speedup.high for one, _ in found)
    return Rates(
        alike=words.count("no detectable difference") / seeds,
        faster=words.count("faster") / seeds,
        slower=words.count("slower") / seeds,
        covered=covered / seeds,
        rounds=sum(count for _, count in found) / seeds,
    )


WORLDS: Mapping[str, World] = {
    "visits scatter by 2 %": World(visit=0.02),
    "3 %, drift": World(visit=0.03, drift=0.2),
    "3 %, drift, spikes": World(visit=0.03, drift=0.2, spikes=0.05),
    "4 %, drift, spikes": World(visit=0.04, drift=0.2, spikes=0.05),
    "3 %, drift, spikes, bursts": World(visit=0.03, drift=0.2, spikes=0.05, bursts=0.03),
    "9 %, drift, spikes": World(visit=0.09, drift=0.2, spikes=0.05),
    "17 %, drift, spikes": World(visit=0.17, drift=0.2, spikes=0.05),
}
"""9 %: the reference machine with busy neighbours, where two modes' log ratios scatter by 13 % per round.
17 %: the compiled modes at batch 1 on a Zen 4 machine, where they scatter by 24 %.
"""


def table(seeds: int) -> Iterator[str]:
    """The rates of all worlds and plans, as lines of Markdown."""
    heads = (
        "machine",
        "rounds",
        "equal modes alike",
        "covered",
        "5 % seen",
        "called slower",
        "covered",
        "taken",
    )
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    plans = {"8": fixed(8), "20": fixed(20)}
    plans |= {"8 to 16 (quick)": adaptive("quick"), "10 to 20 (standard)": adaptive()}
    for label, world in WORLDS.items():
        for name, plan in plans.items():
            equal, apart = (rates(plan, world, ratio, seeds) for ratio in (1.0, 1.05))
            shares = (equal.alike, equal.covered, apart.faster, apart.slower, apart.covered)
            shown = " | ".join(f"{100 * share:.1f} %" for share in shares)
            yield f"| {label} | {name} | {shown} | {equal.rounds:.1f}, {apart.rounds:.1f} |"


if __name__ == "__main__":
    for line in table(int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
        print(line, flush=True)
