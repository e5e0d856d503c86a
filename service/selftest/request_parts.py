"""Checks of a request's parts: none is negative, and `other`, which closes the sum, is that of its pieces."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import median
from typing import Any, Protocol

from service.measure.rounds import Log
from service.selftest.check import Check
from service.selftest.results import CheckResult, exact_result, interval_result
from service.selftest.running_service import RunningService
from service.statistics.intervals import median_interval

REQUESTS = 20
UNCOUNTED = 2
PARTS = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "sync_wait_seconds", "other_seconds")
PIECES = ("border_seconds", "tokenise_seconds", "front_seconds")
"""Pieces of `other` that a response may contain."""

APART = 0.10

Timings = dict[str, Any]


class Engine(Protocol):
    """An engine without a service, such as `service.selftest.bare_engine.BareEngine`."""

    def overhead_seconds(self, mode: str) -> float:
        """Seconds of one job in `mode` between its arrival and its end beside steps and tokenising."""


class StartEngine(Protocol):
    """How to start one, given the cores of the service's engine."""

    def __call__(self, cpus: list[int], log: Log) -> AbstractContextManager[Engine]:
        """The engine ends with the block."""


def parts_check(start_engine: StartEngine) -> Check[RunningService, tuple[str, str], Any]:
    """The check of the parts; the engine's time outside its steps is that of `start_engine`'s."""

    def measure(service: RunningService, log: Log) -> dict[tuple[str, str], list[Any]]:
        """By mode, timings of requests (`request`) and seconds of an engine outside its steps (`engine`).

        In turn, because a minute later the machine may be another. The engine is one without a service, on
        the same cores: intake, buffers, layout, text, book-keeping.
        """
        found: dict[tuple[str, str], list[Any]] = {
            (mode, what): [] for mode in service.modes for what in ("request", "engine")
        }
        with start_engine(service.cpus, log) as engine, service.connection() as connection:
            for number in range(REQUESTS + UNCOUNTED):
                log(f"request {number + 1} of {REQUESTS + UNCOUNTED}, each mode")
                for mode in service.modes:
                    timings, seconds = connection.generate(mode), engine.overhead_seconds(mode)
                    if number >= UNCOUNTED:
                        found[mode, "request"].append(timings)
                        found[mode, "engine"].append(seconds)
        return found

    return Check(measure, judge_parts)


def judge_parts(found: Mapping[tuple[str, str], list[Any]]) -> list[CheckResult]:
    """Over all requests: the signs of the parts. Per mode: `other` against its pieces."""
    modes = list(dict.fromkeys(mode for mode, _ in found))
    everything = [timings for mode in modes for timings in found[mode, "request"]]
    pieces = [_pieces(mode, found[mode, "request"], found[mode, "engine"]) for mode in modes]
    return [_smallest_part(everything), *pieces]


def _smallest_part(requests: list[Timings]) -> CheckResult:
    smallest = {
        name: min(timings[name] for timings in requests)
        for name in (*PARTS, *PIECES)
        if all(timings.get(name) is not None for timings in requests)
    }
    name = min(smallest, key=lambda part: smallest[part])
    note = f"smallest of {len(requests)} requests: {name} {smallest[name] * 1e6:.0f} µs"
    return exact_result(
        "no part of a request is negative", "≥ 0", smallest[name] >= 0, smallest[name], "s", note
    )


def _pieces(mode: str, requests: list[Timings], engine: list[float]) -> CheckResult:
    """The sum of all pieces, of the response and measured apart, over `other`, paired by round."""
    named = [name for name in (*PIECES, "other_seconds") if name in requests[0]]
    micro = {name: median(t[name] for t in requests) * 1e6 for name in named}
    pieces = {name.removesuffix("_seconds"): micro[name] for name in named[:-1]}
    pieces["engine outside its steps"] = median(engine) * 1e6
    ratio = median_interval(
        [
            (sum(timings[name] for name in named[:-1]) + seconds) / timings["other_seconds"]
            for timings, seconds in zip(requests, engine, strict=True)
        ]
    )
    shown = " + ".join(f"{name} {value:.0f}" for name, value in pieces.items())
    note = f"other {micro['other_seconds']:.0f} µs; {shown} = {sum(pieces.values()):.0f}"
    return interval_result(
        f"other's pieces, measured apart, / other: {mode}",
        "within 10 %",
        ratio,
        least=1 - APART,
        most=1 + APART,
        note=note,
        numbers={"engine_seconds": engine, **{k: v / 1e6 for k, v in micro.items()}},
    )
