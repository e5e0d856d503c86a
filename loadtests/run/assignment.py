"""What passes between a sweep and its load generator, another process: one assignment in, events out."""

from __future__ import annotations

import msgspec

from loadtests.plan.cells import Plan
from loadtests.run.rows import Stage


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator is told. It keeps off `avoid_cpus`, the engine's cores.

    `profile_first`: the first pass of warming up runs under the service's profiler, so that it learns the
    kernel time of every cell's step where clocks cannot tell it.
    """

    run: str
    url: str
    folder: str
    plan: Plan
    prompt_file: str
    avoid_cpus: list[int] = []
    exporter_port: int = 0
    profile_first: bool = False


class GeneratorStarted(msgspec.Struct, frozen=True, tag="started"):
    """The load generator runs, on `cpus`; `note` says whether it exports metrics."""

    cpus: list[int]
    note: str


class RequestEnded(msgspec.Struct, frozen=True, tag="ended"):
    """One request ended and its row is written."""

    stage: Stage
    round: int
    cell: str
    latency_seconds: float
    error: str | None


class WarmupPassEnded(msgspec.Struct, frozen=True, tag="pass"):
    """One pass of warming up; `over` says that measuring begins."""

    number: int
    settled: bool
    over: bool
    reason: str


class GeneratorFinished(msgspec.Struct, frozen=True, tag="finished"):
    """All that was asked for is done, or `aborted` says why not. `order` is the cells' names, round by round.

    `rates` are the arrivals per second of open-loop cells; `cpu_share` is this process's share of one core
    while it measured.
    """

    order: list[list[str]]
    rates: dict[str, float]
    cpu_share: float | None
    warmup_passes: int
    warmup_settled: bool
    warmup_reason: str
    aborted: str | None = None


GeneratorEvent = GeneratorStarted | RequestEnded | WarmupPassEnded | GeneratorFinished
