"""What a sweep measures and in which order: arrivals, cells, the plan of its results, and prompts."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec

from service.modes import MODES
from service.statistics.choice import MINIMUM_ROUNDS as MINIMUM_ROUNDS
from service.statistics.choice import interim_checks
from service.workloads import FORWARD, GENERATE, Workload, WorkloadName

BASELINE = next(iter(MODES))
"""The first mode of the ladder, `eager`, which every plan has; answers are against `choice.BASELINE`."""


class PlanError(ValueError):
    """A plan that cannot be run; the message names the remedy."""


PromptSet = Literal["short", "any", "long"]
Arrivals = Literal["poisson", "constant"]
"""`poisson`: gaps are exponential, as of many clients that know nothing of each other; `constant`: equal."""


def due_times(arrivals: Arrivals, rate_per_second: float, count: int, seed: str) -> list[float]:
    """Due times in seconds of `count` arrivals, the first at 0.

    Poisson's times of one seed at another rate are the same ones on another scale.
    """
    if arrivals == "constant":
        return [number / rate_per_second for number in range(count)]
    random = Random(f"arrivals/{seed}")
    return list(accumulate((random.expovariate(rate_per_second) for _ in range(count - 1)), initial=0.0))


Group = tuple[int, str | None, int | None, int, float | str | None]
"""Batch size, prompt set, new tokens, concurrency, arrivals: what cells that are compared have in common.

A module has neither prompts nor tokens. Arrivals are None in a closed loop, the load where they are Poisson's
at a share of the capacity (1 / latency at the end of warm-up), else as in the cell's name.
"""

WORK: dict[WorkloadName, tuple[str, ...]] = {"generate": ("prompt_set", "new_tokens"), "forward": ("calls",)}
"""The fields of a cell that say what a request asks for, besides its batch size."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep.

    `concurrency` requests are kept in flight (closed loop). With `load` or `rate`, they follow a schedule of
    `arrivals` instead (open loop): at that share of its mode's capacity, or at that many requests per second,
    the same for every mode. A block is the `requests` of a cell in one round. The control cell runs the
    baseline again: their difference is the noise floor.

    A request of a module makes `calls` calls in a row, in place of completing prompts. They are no part of
    the name: what is compared is one call, and another sweep may choose another number.
    """

    mode: str
    batch_size: int
    prompt_set: PromptSet | None = "short"
    new_tokens: int | None = 32
    calls: int | None = None
    concurrency: int = 1
    load: float | None = None
    rate: float | None = None
    arrivals: Arrivals = "poisson"
    control: bool = False
    requests: int = 3

    @property
    def open_loop(self) -> bool:
        """Whether requests are sent by a schedule, whatever the responses do."""
        return self.load is not None or self.rate is not None

    @property
    def name(self) -> str:
        """Name of the cell in rows and tables; unique within a plan."""
        name = f"{self.mode} b={self.batch_size} {work_name(self.group)}{self._arrivals_name}"
        return f"{name} control" if self.control else name

    @property
    def _arrivals_name(self) -> str:
        if not self.open_loop:
            return f"c={self.concurrency}"
        name = f"load={self.load:g}" if self.rate is None else f"rate={self.rate:g}/s"
        return name + (" constant" if self.arrivals == "constant" else "")

    @property
    def workload(self) -> Workload:
        return GENERATE if self.calls is None else FORWARD

    @property
    def work(self) -> dict[str, Any]:
        """What one request asks for: its batch size, and the fields of WORK."""
        return {name: getattr(self, name) for name in ("batch_size", *WORK[self.workload.name])}

    @property
    def group(self) -> Group:
        """What it shares with the cells that it is compared with."""
        by_load = self.rate is None and self.arrivals == "poisson"
        arrivals = self.load if by_load or not self.open_loop else self._arrivals_name
        return (self.batch_size, self.prompt_set, self.new_tokens, self.concurrency, arrivals)


def work_name(group: Group) -> str:
    """'short n=32 ': what requests of `group` complete; empty of a module."""
    _, prompt_set, tokens, *_ = group
    return "" if tokens is None else f"{prompt_set} n={tokens} "


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Cells, how many rounds measure each, and the seed that fixes every order, prompt and arrival.

    `rounds` rounds measure every cell. Main groups whose answer is not resolved by then go on with
    all their cells, up to `rounds_most` (None: `rounds`).
    `replicas`: the service may be several replicas behind a proxy.
    """

    preset: str
    seed: int
    rounds: int
    rounds_most: int | None = None
    cells: tuple[Cell, ...]
    warmup_passes_least: int = 2
    warmup_passes_most: int = 6
    replicas: bool = False

    @property
    def modes(self) -> list[str]:
        return list(dict.fromkeys(cell.mode for cell in self.cells))

    @property
    def batch_sizes(self) -> list[int]:
        return sorted({cell.batch_size for cell in self.cells})

    @property
    def interim_checks(self) -> tuple[int, ...]:
        """Numbers of the rounds after which it is determined which answers are not resolved."""
        return interim_checks(self.rounds, self.rounds_most or self.rounds)

    @property
    def main_groups(self) -> list[Group]:
        """The closed-loop groups that differ in batch size only from that of the first closed-loop cell."""
        closed = [cell.group for cell in self.cells if not cell.open_loop]
        return list(dict.fromkeys(group for group in closed if group[1:] == closed[0][1:]))

    @property
    def requests(self) -> int:
        """Requests of the least number of rounds, warm-up not counted."""
        return self.rounds * sum(cell.requests for cell in self.cells)

    @property
    def sampled_requests(self) -> int:
        """On a CPU the further ones in these rounds whose steps are sampled: one per closed-loop block."""
        return self.rounds * sum(not cell.open_loop for cell in self.cells)

    def of_calls(self, calls: Mapping[int, int] | None = None) -> Plan:
        """This plan for a module: each closed-loop cell once, without prompts and new tokens.

        `calls` per request by batch size; None: they are not chosen yet, and 1.
        """
        cells = dict[str, Cell]()
        for cell in self.cells:
            if not cell.open_loop:
                chosen = 1 if calls is None else calls[cell.batch_size]
                made = msgspec.structs.replace(cell, prompt_set=None, new_tokens=None, calls=chosen)
                cells.setdefault(made.name, made)
        return msgspec.structs.replace(self, cells=tuple(cells.values()))

    def requests_of(self, groups: Collection[Group]) -> int:
        return sum(cell.requests for cell in self.cells if cell.group in groups)


def order(plan: Plan, number: int, groups: Collection[Group] | None = None) -> list[Cell]:
    """The cells, or those of `groups`, in the order of round `number`; 0, -1, … are warm-up passes.

    Groups are shuffled, and the cells within each, so that cells that are compared run within seconds of each
    other. The order depends on the seed alone; leaving groups out does not change that of the others.
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


# The prompts that load tests send: Python snippets of this repository

PROMPT_FILE = Path(__file__).with_name("prompts.jsonl")

SHORT_CHARACTERS = 160
"""At most this long a snippet is `short`: one prefill chunk of 64 tokens."""

LONG_CHARACTERS = 900
"""At least this long is a `long` prompt, several snippets in one: about five prefill chunks."""


def read_prompts() -> list[str]:
    """The snippets, of a file of JSON lines with one `{"text": "…"}` per line."""
    return [json.loads(line)["text"] for line in PROMPT_FILE.read_text(encoding="utf-8").splitlines()]


def select(texts: list[str], name: PromptSet) -> list[str]:
    """The set called `name` made of `texts`; never empty for a non-empty list.

    `short`: up to SHORT_CHARACTERS, or the shortest one where none is that short. `any`: all. `long`:
    consecutive texts joined until each is at least LONG_CHARACTERS long.
    """
    if name == "any":
        return texts
    if name == "short":
        return [text for text in texts if len(text) <= SHORT_CHARACTERS] or [min(texts, key=len)]
    return [_joined(texts, start) for start in range(len(texts))]


def _joined(texts: list[str], start: int) -> str:
    text = texts[start]
    while len(text) < LONG_CHARACTERS:
        start += 1
        text += "\n\n\n" + texts[start % len(texts)]
    return text


def draw(texts: list[str], count: int, seed: str) -> list[str]:
    """`count` of `texts`, drawn by `seed` without repeats as long as there are enough."""
    random = Random(seed)
    drawn = list[str]()
    while len(drawn) < count:
        drawn += random.sample(texts, min(count - len(drawn), len(texts)))
    return drawn
