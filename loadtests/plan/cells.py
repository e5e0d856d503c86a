"""What a sweep measures and in which order: objectives, arrivals, cells, and the plan of its results."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import accumulate
from random import Random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from loadtests.plan.prompts import PromptSet
from service.modes import AUTO, MODES
from service.statistics.choice import MINIMUM_ROUNDS as MINIMUM_ROUNDS
from service.statistics.choice import interim_checks

BASELINE = next(iter(MODES))
"""The first mode of the ladder, `eager`, which every plan has; answers are against `choice.BASELINE`."""


class PlanError(ValueError):
    """A plan that cannot be run; the message names the remedy."""


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


_EXAMPLE = "ttft=0.05,tpot=0.01,e2e=0.1,share=0.99"

Limit = Annotated[float, Meta(gt=0, le=3600)]
"""Seconds. Infinity could not be written to a plan file."""

Multiple = Annotated[float, Meta(gt=1, le=1000)]
"""At 1 or below, eager would miss it without any load."""

Share = Annotated[float, Meta(gt=0, le=1)]


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits in seconds, each counted from the intended start of a request; None: no such limit.

    `e2e_seconds` is for the whole answer; `ttft_seconds` for the first token: how late the request was sent,
    plus the service's own `time_to_first_token_seconds`, which leaves out HTTP on the way in; `tpot_seconds`
    for (total - time to first token) / (new tokens - 1). `share` of a block's requests must meet all of them
    for its rate to count as served; one that was rejected or failed meets none. `e2e_of_eager` is a limit for
    the whole answer as a multiple of eager's latency at the same work and no load: `settled` makes seconds of
    it, once warm-up has measured that. Raises PlanError without any limit.
    """

    ttft_seconds: Limit | None = None
    tpot_seconds: Limit | None = None
    e2e_seconds: Limit | None = None
    e2e_of_eager: Multiple | None = None
    share: Share = 0.95

    def __post_init__(self) -> None:
        limits = (self.ttft_seconds, self.tpot_seconds, self.e2e_seconds, self.e2e_of_eager)
        if limits == (None, None, None, None):
            raise PlanError("an SLO without a limit is met by anything: give ttft, tpot or e2e in seconds")

    @property
    def is_settled(self) -> bool:
        """Whether all its limits are known in seconds."""
        return self.e2e_of_eager is None or self.e2e_seconds is not None

    def settled(self, eager_seconds: float) -> Slo:
        """The SLO in seconds, to two digits, where eager takes `eager_seconds` without load."""
        if self.is_settled or self.e2e_of_eager is None:
            return self
        return msgspec.structs.replace(self, e2e_seconds=float(f"{self.e2e_of_eager * eager_seconds:.2g}"))

    @property
    def text(self) -> str:
        """What it asks for, in words."""
        names = (("TTFT", self.ttft_seconds), ("TPOT", self.tpot_seconds), ("the answer", self.e2e_seconds))
        limits = [f"{name} within {most * 1e3:g} ms" for name, most in names if most is not None]
        if self.e2e_of_eager is not None:
            of_eager = f"{self.e2e_of_eager:g} times eager's latency without load"
            limits.append(f"which is {of_eager}" if self.is_settled else f"the answer within {of_eager}")
        return f"{', '.join(limits)}, for {100 * self.share:g} % of the requests"


class SloTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An SLO as plan files and the command line write it: limits in seconds, and the share."""

    ttft: Limit | None = None
    tpot: Limit | None = None
    e2e: Limit | None = None
    e2e_of_eager: Multiple | None = None
    share: Share = 0.95

    @property
    def slo(self) -> Slo:
        """What it says. Raises PlanError without any limit, and with two for the whole answer."""
        if self.e2e is not None and self.e2e_of_eager is not None:
            raise PlanError("e2e and e2e_of_eager are both limits for the whole answer: leave one out")
        seconds = {"ttft_seconds": self.ttft, "tpot_seconds": self.tpot, "e2e_seconds": self.e2e}
        return Slo(**seconds, e2e_of_eager=self.e2e_of_eager, share=self.share)

    @property
    def text(self) -> str:
        """As the command line takes it: `slo_table` gives it back."""
        given = msgspec.structs.asdict(self).items()
        return ",".join(f"{key}={value}" for key, value in given if value is not None)


def slo_table(text: str) -> SloTable:
    """The table of a line such as `ttft=0.05,e2e=0.1`. Raises PlanError with the remedy."""
    given = dict[str, str]()
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise PlanError(f"'{part}' is no limit of an SLO: write it as in {_EXAMPLE}, in seconds")
        if key in given:
            raise PlanError(f"the SLO '{text}' has {key} twice: leave one out")
        given[key] = value
    try:
        return msgspec.convert(given, SloTable, strict=False)
    except msgspec.ValidationError as error:
        raise PlanError(f"the SLO '{text}': {error}; write it as in {_EXAMPLE}, in seconds") from error


def parse_slo(text: str) -> Slo:
    """The SLO of `text`, as `slo_table`. Raises PlanError where a limit is not in seconds."""
    found = slo_table(text).slo
    if not found.is_settled:
        raise PlanError("e2e_of_eager is for sweeps, which measure eager first: give e2e in seconds")
    return found


Group = tuple[int, str, int, int, float | str | None]
"""Batch size, prompt set, new tokens, concurrency, arrivals: what cells that are compared have in common.

Arrivals are None in a closed loop, the load where they are Poisson's at a share of the capacity (1 / latency
at the end of warm-up), else as in the cell's name.
"""


def mode_names() -> list[str]:
    """What a cell's requests can be sent to: all modes in the order of the ladder, and `auto`."""
    return [*MODES, AUTO]


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a sweep.

    `concurrency` requests are kept in flight (closed loop). With `load` or `rate`, they follow a schedule of
    `arrivals` instead (open loop): at that share of its mode's capacity, or at that many requests per second,
    the same for every mode. A block is the `requests` of a cell in one round. The control cell runs the
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
    control: bool = False
    requests: int = 3

    @property
    def candidate(self) -> bool:
        """Whether its mode is one to choose: not the control cell, nor `auto`, which runs another."""
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
        return name + (" constant" if self.arrivals == "constant" else "")

    @property
    def work(self) -> tuple[int, PromptSet, int]:
        """What one request asks for: batch size, prompt set, new tokens."""
        return (self.batch_size, self.prompt_set, self.new_tokens)

    @property
    def group(self) -> Group:
        """What it shares with the cells that it is compared with."""
        by_load = self.rate is None and self.arrivals == "poisson"
        arrivals = self.load if by_load or not self.open_loop else self._arrivals_name
        return (self.batch_size, self.prompt_set, self.new_tokens, self.concurrency, arrivals)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Cells, how many rounds measure each, and the seed that fixes every order, prompt and arrival.

    `rounds` rounds measure every cell. Main groups whose answer is not resolved by then go on with
    all their cells, up to `rounds_most` (None: `rounds`). `slo` is what open-loop cells are judged by.
    `replicas`: the service may be several replicas behind a proxy.
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

    def requests_of(self, groups: Collection[Group]) -> int:
        """Requests of one round over the cells of `groups`."""
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
        cell = Cell(
            mode=BASELINE,
            batch_size=batch,
            prompt_set=prompt_set,
            new_tokens=new_tokens,
            concurrency=concurrency,
            requests=requests,
        )
        yield from (msgspec.structs.replace(cell, mode=mode) for mode in modes)
        yield msgspec.structs.replace(cell, control=True)
