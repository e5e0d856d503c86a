"""What a sweep measures and in which order: a frozen plan, saved with its results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from random import Random
from typing import Literal

import msgspec

from loadtests.plan.arrivals import Arrivals
from loadtests.plan.errors import PlanError as PlanError
from loadtests.plan.prompts import PromptSet
from loadtests.plan.slo import Slo
from service.modes import AUTO, MODES
from service.statistics.choice import MINIMUM_ROUNDS as MINIMUM_ROUNDS
from service.statistics.choice import confidence_of, looks

BASELINE = next(iter(MODES))
"""The first mode of the ladder, `eager`: every speed-up is against it."""


Group = tuple[int, str, int, int, float | str | None]
"""Batch size, prompt set, new tokens, concurrency, arrivals: what cells that are compared have in common.

Arrivals are None in a closed loop, the load where they are Poisson's at a share of the capacity, else as in
the cell's name.
"""

ShareOf = Literal["capacity", "search"]
"""Of what a load is a share: 1 / latency of warm-up. `search` is in folders of older sweeps only."""


def mode_names() -> list[str]:
    """What a cell's requests can be sent to: all modes in the order of the ladder, and `auto`."""
    return [*MODES, AUTO]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep.

    `concurrency` requests are kept in flight (closed loop). With `load` or `rate`, they follow a schedule of
    `arrivals` instead (open loop): at that share of what its mode can do, or at that many requests per
    second, the same for every mode. `requests` are sent per visit. The control cell runs the
    baseline again: their difference is the noise floor.
    """

    mode: str
    batch_size: int
    prompt_set: PromptSet = "short"
    new_tokens: int = 32
    concurrency: int = 1
    load: float | None = None
    rate: float | None = None
    arrivals: Arrivals = "poisson"
    share_of: ShareOf = "capacity"
    control: bool = False
    requests: int = 3

    @property
    def candidate(self) -> bool:
        """Whether its mode is one to choose: the control cell's is there already, and `auto` runs another."""
        return not self.control and self.mode != AUTO

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent by a schedule, whatever the responses do."""
        return self.load is not None or self.rate is not None

    @property
    def name(self) -> str:
        """Name of the cell in rows and tables; unique within a plan."""
        name = f"{self.mode} b={self.batch_size} {self.prompt_set} n={self.new_tokens} {self._arrivals_name}"
        return f"{name} control" if self.control else name

    @property
    def _arrivals_name(self) -> str:
        if not self.open_loop:
            return f"c={self.concurrency}"
        name = f"load={self.load:g}" if self.rate is None else f"rate={self.rate:g}/s"
        found = " of search" if self.share_of == "search" else ""
        return name + found + (" constant" if self.arrivals == "constant" else "")

    @property
    def work(self) -> tuple[int, PromptSet, int]:
        """What one request asks for: batch size, prompt set, new tokens."""
        return (self.batch_size, self.prompt_set, self.new_tokens)

    @property
    def group(self) -> Group:
        """What it shares with the cells that it is compared with."""
        own = self.rate is not None or (self.arrivals, self.share_of) != ("poisson", "capacity")
        arrivals = self._arrivals_name if self.open_loop and own else self.load
        return (self.batch_size, self.prompt_set, self.new_tokens, self.concurrency, arrivals)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Cells, how often each is visited, and the seed that fixes every order, prompt and arrival.

    Every cell is visited in `rounds` rounds. Main groups whose fastest mode is not told apart by then go on
    with all their cells, up to `rounds_most` (None: `rounds`); `looks` are the rounds after which to judge.
    `slo` is what open-loop cells are judged by. `replicas`: the service may be several replicas behind a
    proxy.
    """

    preset: str
    seed: int
    rounds: int
    rounds_most: int | None = None
    cells: tuple[Cell, ...]
    warmup_passes_least: int = 2
    warmup_passes_most: int = 6
    slo: Slo | None = None
    replicas: bool = False

    @property
    def modes(self) -> list[str]:
        """Modes in the order of their first cell, `auto` among them."""
        return list(dict.fromkeys(cell.mode for cell in self.cells))

    @property
    def ladder_modes(self) -> list[str]:
        """Those that a service has to be started with: without `auto`, which runs one of them."""
        return [mode for mode in self.modes if mode != AUTO]

    @property
    def batch_sizes(self) -> list[int]:
        """Batch sizes, ascending."""
        return sorted({cell.batch_size for cell in self.cells})

    @property
    def looks(self) -> tuple[int, ...]:
        """Numbers of the rounds after which the undecided groups are looked for."""
        return looks(self.rounds, self.rounds_most or self.rounds)

    @property
    def confidence(self) -> float:
        """Of every interval that is looked at, here and in the report: corrected for the number of looks."""
        return confidence_of(len(self.looks))

    @property
    def main_groups(self) -> list[Group]:
        """The closed-loop groups that differ in batch size only from that of the first closed-loop cell."""
        closed = [cell.group for cell in self.cells if not cell.open_loop]
        return list(dict.fromkeys(group for group in closed if group[1:] == closed[0][1:]))

    @property
    def requests(self) -> int:
        """Requests of the least number of rounds, warm-up not counted."""
        return self.rounds * sum(cell.requests for cell in self.cells)

    def requests_of(self, groups: Collection[Group]) -> int:
        """Requests of one round over the cells of `groups`."""
        return sum(cell.requests for cell in self.cells if cell.group in groups)


def order(plan: Plan, number: int, groups: Collection[Group] | None = None) -> list[Cell]:
    """The cells, or those of `groups`, in the order of round `number`; 0, -1, … are warm-up passes.

    Groups are shuffled, and the cells within each: what is compared with each other is measured within
    seconds, since the machine changes within a round too. The order depends on the seed alone, and leaving
    groups out does not change that of the others.
    """
    shuffled = list(dict.fromkeys(cell.group for cell in plan.cells))
    Random(f"order/{plan.seed}/{number}").shuffle(shuffled)
    found = list[Cell]()
    for group in shuffled:
        if groups is None or group in groups:
            cells = [cell for cell in plan.cells if cell.group == group]
            Random(f"order/{plan.seed}/{number}/{group}").shuffle(cells)
            found += cells
    return found


def ladder_cells(
    modes: Iterable[str],
    batch_sizes: Iterable[int],
    new_tokens: int = 32,
    requests: int = 3,
    prompt_set: PromptSet = "short",
    concurrency: int = 1,
) -> Iterator[Cell]:
    """Closed-loop cells: every mode at every batch, and per batch a control cell."""
    for batch in batch_sizes:
        for mode, control in [*((mode, False) for mode in modes), (BASELINE, True)]:
            yield Cell(
                mode=mode,
                batch_size=batch,
                prompt_set=prompt_set,
                new_tokens=new_tokens,
                concurrency=concurrency,
                control=control,
                requests=requests,
            )
