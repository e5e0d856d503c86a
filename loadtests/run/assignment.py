"""Messages between a sweep and its load generator process: one assignment in, events out."""

from __future__ import annotations

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.rows import Stage
from loadtests.run.run_file import Look, RoundMachine


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """Input of the load generator, which does not run on `avoid_cpus`, the engine's cores.

    `profile_first`: the first warm-up pass runs under the service's profiler, from which the service learns
    the kernel time of each cell's step where no clock measures it. `canary_bytes` is the size of the model's
    weights; 0: not known, no canary.
    """

    run: str
    url: str
    folder: str
    plan: Plan
    prompt_file: str
    avoid_cpus: list[int] = []
    exporter_port: int = 0
    profile_first: bool = False
    canary_bytes: int = 0


class GeneratorStarted(msgspec.Struct, frozen=True, tag="started"):
    """The load generator has started on `cpus`; `note` is a line about its metrics port."""

    cpus: list[int]
    note: str


class RequestEnded(msgspec.Struct, frozen=True, tag="ended"):
    """One request has ended and its row is written."""

    stage: Stage
    round: int
    cell: str
    latency_seconds: float
    error: str | None


class WarmupPassEnded(msgspec.Struct, frozen=True, tag="pass"):
    """One warm-up pass has ended; `over`: measuring begins. `settled` and `reason` as in WarmUp."""

    number: int
    settled: bool
    over: bool
    reason: str


class RoundEnded(msgspec.Struct, frozen=True, tag="round"):
    """One round has ended; `machine` is what the machine did in it."""

    machine: RoundMachine


class LookEnded(msgspec.Struct, frozen=True, tag="look"):
    """A look has ended; `requests` are those of the rounds until the next one, 0 where measuring is over."""

    look: Look
    requests: int


class GeneratorFinished(msgspec.Struct, frozen=True, tag="finished"):
    """The plan was run, or `aborted` is the reason why not. `order` holds the cells' names by round.

    `rates` are the arrivals per second of open-loop cells; `cpu_share` is the load generator's share of
    one core while it measured.
    """

    order: list[list[str]]
    rates: dict[str, float]
    cpu_share: float | None
    warmup_passes: int
    warmup_settled: bool
    warmup_reason: str
    aborted: str | None = None


GeneratorEvent = (
    GeneratorStarted | RequestEnded | WarmupPassEnded | RoundEnded | LookEnded | GeneratorFinished
)
