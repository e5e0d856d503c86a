"""The same arrivals at a service without batching and at one with it, in turn, and the ratios of the rounds.

Sweeps of two services one after the other differ by what the machine did meanwhile, a tenth and more;
within a round of seconds it does much the same to both. Two processes of one build differ by some percent all
the same, in every request alike, so that requests which met nobody are the control.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import inf
from queue import SimpleQueue
from random import Random
from statistics import fmean, geometric_mean, median
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import msgspec

from loadtests.run.environment import git_state
from loadtests.run.open_connection import OpenConnection
from loadtests.run.part import now
from loadtests.run.target import Target, TargetError, linear_layout
from service.statistics.intervals import as_json, paired_ratio

FORMAT_VERSION = 3
ALONE_REQUESTS = 20
CLEAR_BEFORE, CLEAR_AFTER = 3.0, 1.5
"""A request met nobody where so many latencies of a request alone went by without another arrival."""

PROMPT = "def mean(values):"
_ALIKE = ("model_hash", "dtype", "threads", "batch_buckets")

CONNECTIONS = 16
"""Requests at once; below saturation a few are enough."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """Requests at one service, in order of arrival, and the mean effective batch over them.

    Each latency begins where its request was due, sent late or not.
    """

    latency_seconds: list[float]
    effective_batch: float

    @property
    def median_seconds(self) -> float:
        """Of the latencies."""
        return median(self.latency_seconds)

    def mean_of(self, numbers: Sequence[int]) -> float:
        """The geometric mean of these requests' latencies."""
        return geometric_mean(self.latency_seconds[number] for number in numbers)


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One visit each, at the same arrivals.

    `apart` are the requests that met nobody, as the arrivals alone tell: batching has no part in what they
    take, and they differ by what two processes and their turns differ by.
    """

    off: Visit
    batched: Visit
    apart: list[int]


def due_times(rate: float, requests: int, seed: int) -> list[float]:
    """Seconds from the visit's begin at which requests of a Poisson process arrive, `rate` per second."""
    draws = Random(seed)
    due, at = list[float](), 0.0
    for _ in range(requests):
        at += draws.expovariate(rate)
        due.append(at)
    return due


def arrive_apart(due: Sequence[float], alone_seconds: float) -> list[int]:
    """Those of `due` that have no other shortly before them or after, by the latency of a request alone."""
    before = [-inf, *due[:-1]]
    after = [*due[1:], inf]
    return [
        number
        for number, (earlier, at, later) in enumerate(zip(before, due, after, strict=True))
        if at - earlier > CLEAR_BEFORE * alone_seconds and later - at > CLEAR_AFTER * alone_seconds
    ]


def visit(due: Sequence[float], connections: Sequence[OpenConnection]) -> Visit:
    """Send a request at each of `due`, by whichever connection is free. Raises TargetError."""
    waiting: SimpleQueue[int | None] = SimpleQueue()
    done: SimpleQueue[tuple[int, float, float] | TargetError] = SimpleQueue()
    begin = perf_counter()

    def send_by(connection: OpenConnection) -> None:
        while (number := waiting.get()) is not None:
            try:
                _, answer = connection.request()
            except TargetError as error:
                done.put(error)
            else:
                merged = answer["timings"].get("effective_batch")
                done.put((number, perf_counter() - begin - due[number], float(merged or 1)))

    threads = [Thread(target=send_by, args=[connection]) for connection in connections]
    for thread in threads:
        thread.start()
    for number, at in enumerate(due):
        sleep(max(0.0, begin + at - perf_counter()))
        waiting.put(number)
    for _ in threads:
        waiting.put(None)
    for thread in threads:
        thread.join()
    found = [done.get() for _ in due]
    for one in found:
        if isinstance(one, TargetError):
            raise one
    taken = sorted(one for one in found if not isinstance(one, TargetError))
    return Visit(
        latency_seconds=[seconds for _, seconds, _ in taken],
        effective_batch=fmean(merged for *_, merged in taken),
    )


def measure(
    off: str,
    batched: str,
    mode: str,
    load: float,
    rounds: int,
    requests: int,
    new_tokens: int,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """The document: every latency, and what batching costs (`summary`). Raises TargetError.

    `load` is the share of what `off` could serve one after the other: its rate times the median latency of
    a request alone, before the rounds. `load_found` is the same by the requests that met nobody in them, None
    without any: more or less of it where the machine, or a service that was still warming up, changed speed.
    """
    key = os.environ.get("LAUNCHBOUND_API_KEY")
    served = _served(Target(off, key), Target(batched, key))
    body = {"prompts": [PROMPT], "max_new_tokens": new_tokens, "ignore_eos": True}
    ways = [[OpenConnection(url, body, mode, key) for _ in range(CONNECTIONS)] for url in (off, batched)]
    try:
        alone = [median(way[0].request()[0] for _ in range(ALONE_REQUESTS)) for way in ways]
        rate = load / alone[0]
        tell(f"{mode}: {1e3 * alone[0]:.1f} ms alone, so {rate:.1f} requests/s")
        taken = list[Round]()
        for number in range(rounds):
            due = due_times(rate, requests, seed=number)
            first, second = (0, 1) if number % 2 == 0 else (1, 0)
            visits = {way: visit(due, ways[way]) for way in (first, second)}
            taken.append(Round(off=visits[0], batched=visits[1], apart=arrive_apart(due, alone[0])))
    finally:
        for way in ways:
            for connection in way:
                connection.close()
    return {
        "format_version": FORMAT_VERSION,
        "started": now(),
        "load_tests": git_state(),
        **served,
        "request": {"mode": mode, **body},
        "load": load,
        "load_found": _load(rate, taken),
        "rate": rate,
        "alone_seconds": dict(zip(("off", "batched"), alone, strict=True)),
        "summary": summary(taken),
        "rounds": msgspec.to_builtins(taken),
    }


def summary(rounds: Sequence[Round]) -> dict[str, Any]:
    """Latency with batching over that without, each round one value, with 95 %.

    `times_as_long` is of the rounds' medians. `apart_times_as_long` is of the requests that met nobody
    (geometric means): what the two services differ by without batching's doing. `cost` is the former over
    the latter. Rounds in which every request may have met another have no part in either of the last two,
    which are None where that is so in all.
    """
    medians = [(one.batched.median_seconds, one.off.median_seconds) for one in rounds]
    control = [(one.batched.mean_of(one.apart), one.off.mean_of(one.apart)) for one in rounds if one.apart]
    with_control = [pair for pair, one in zip(medians, rounds, strict=True) if one.apart]
    costs = [
        (batched / off, batched_apart / off_apart)
        for (batched, off), (batched_apart, off_apart) in zip(with_control, control, strict=True)
    ]
    return {
        "off_median_seconds": median(off for _, off in medians),
        "batched_median_seconds": median(batched for batched, _ in medians),
        "effective_batch": fmean(one.batched.effective_batch for one in rounds),
        "apart_requests": sum(len(one.apart) for one in rounds),
        "times_as_long": _ratio(medians),
        "apart_times_as_long": _ratio(control),
        "cost": _ratio(costs),
    }


def _load(rate: float, rounds: Sequence[Round]) -> float | None:
    alone = [one.off.latency_seconds[number] for one in rounds for number in one.apart]
    return rate * median(alone) if alone else None


def _ratio(pairs: Sequence[tuple[float, float]]) -> dict[str, float | int | None] | None:
    """Of the first over the second of each pair; None where there is no pair."""
    return as_json(paired_ratio([one for one, _ in pairs], [other for _, other in pairs])) if pairs else None


def _served(off: Target, batched: Target) -> dict[str, Any]:
    """What both serve. Raises TargetError unless only the second merges requests and all else is equal."""
    engines = [target.modes()["engine"] or {} for target in (off, batched)]
    if engines[0].get("batching") != "off":
        raise TargetError(f"{off.url} merges requests: name one that is served with --batching off first")
    if engines[1].get("batching") in (None, "off"):
        raise TargetError(f"{batched.url} does not merge requests: serve it with --batching continuous")
    alike = [
        *((field, [one.get(field) for one in engines]) for field in _ALIKE),
        ("linears", [linear_layout(one) for one in engines]),
    ]
    for field, (one, other) in alike:
        if one != other:
            raise TargetError(
                f"{off.url} and {batched.url} differ in more than batching: {field} {one} and {other}"
            )
    return {
        "off": {"url": off.url, "engine": engines[0]},
        "batched": {"url": batched.url, "engine": engines[1]},
    }
