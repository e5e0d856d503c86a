"""One visit: Poisson arrivals at one service, and what each request took from where it was due."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from queue import SimpleQueue
from random import Random
from statistics import fmean, geometric_mean, median
from threading import Thread
from time import perf_counter, sleep

import msgspec

from loadtests.run.open_connection import OpenConnection
from loadtests.run.target import TargetError

CLEAR_BEFORE, CLEAR_AFTER = 3.0, 1.5
"""A request met nobody where so many latencies of a request alone went by without another arrival."""


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

    @property
    def mean_seconds(self) -> float:
        """Of the latencies."""
        return fmean(self.latency_seconds)

    def mean_of(self, numbers: Sequence[int]) -> float:
        """The geometric mean of these requests' latencies."""
        return geometric_mean(self.latency_seconds[number] for number in numbers)


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
