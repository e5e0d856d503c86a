"""Checks under load: step time at concurrency 8 against 1, and the time of a scrape."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median
from threading import Event
from time import perf_counter, sleep
from typing import Any

from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.selftest.results import CheckResult, interval_result
from service.selftest.running_service import RunningService
from service.statistics.intervals import median_interval

CONCURRENCY = 8
ROUNDS = 16
REQUESTS = 8
MOST_RATIO = 1.05
SCRAPES = 40
SCRAPE_PAUSE_SECONDS = 0.1
MOST_SCRAPE_SECONDS = 0.010


def concurrency(service: RunningService, log: Log) -> list[CheckResult]:
    """Decode wall per step at concurrency 8 over that at 1, in the mode whose steps are shortest."""
    mode = service.modes[-1]
    switches = {1: 0, CONCURRENCY: 0}
    steps = {1: 0, CONCURRENCY: 0}

    def at(users: int) -> float:
        found = _burst(service, mode, users)
        switches[users] += sum(timings["involuntary_switches"] for timings in found)
        steps[users] += sum(timings["decode"]["steps"] for timings in found)
        decodes = [timings["decode"] for timings in found]
        return float(median(decode["wall_seconds"] / decode["steps"] for decode in decodes))

    found = in_rounds({users: partial(at, users) for users in (1, CONCURRENCY)}, ROUNDS, "concurrency", log)
    ratio = paired_median_ratio(found[CONCURRENCY], found[1])
    shown = ", ".join(f"{switches[u]} in {steps[u]} steps at {u}" for u in switches)
    note = f"{mode}, engine on cores {service.cpus}; involuntary switches: {shown}"
    return [
        interval_result(
            f"step time, concurrency {CONCURRENCY} / 1",
            f"≤ {MOST_RATIO}",
            ratio,
            most=MOST_RATIO,
            note=note,
            numbers={
                "at_1_seconds": found[1],
                "at_8_seconds": found[CONCURRENCY],
                "switches_at_1": switches[1],
                "switches_at_8": switches[CONCURRENCY],
            },
        )
    ]


def _burst(service: RunningService, mode: str, users: int) -> list[dict[str, Any]]:
    """`REQUESTS` requests, or one per user where that is more, with `users` of them in flight."""
    each = max(1, REQUESTS // users)

    def user(_: int) -> list[dict[str, Any]]:
        with service.connection() as connection:
            return [connection.generate(mode) for _ in range(each)]

    with ThreadPoolExecutor(users) as pool:
        return [timings for found in pool.map(user, range(users)) for timings in found]


def scrape(service: RunningService, log: Log) -> list[CheckResult]:
    """Time of GET /metrics as a client sees it, while requests are in flight."""
    found = []
    with _loaded(service), service.connection() as connection:
        for number in range(SCRAPES):
            log(f"scrape {number + 1} of {SCRAPES}")
            began = perf_counter()
            status, body = connection.get("/metrics")
            found.append(perf_counter() - began)
            if status != 200:
                raise RuntimeError(f"/metrics answered {status}")
            sleep(SCRAPE_PAUSE_SECONDS)
    middle = median_interval(found)
    note = f"median {middle.value * 1e3:.1f} ms, {len(body) // 1024} KiB, 4 requests in flight"
    return [
        interval_result(
            "time of a /metrics scrape under load",
            "median ≤ 10 ms",
            middle,
            most=MOST_SCRAPE_SECONDS,
            unit="s",
            note=note,
            numbers={"seconds": found},
        )
    ]


@contextmanager
def _loaded(service: RunningService, users: int = 4) -> Iterator[None]:
    """Within: `users` requests are in flight."""
    over = Event()

    def user(number: int) -> None:
        with service.connection() as connection:
            while not over.is_set():
                connection.generate(service.modes[number % len(service.modes)])

    with ThreadPoolExecutor(users) as pool:
        futures = [pool.submit(user, number) for number in range(users)]
        try:
            yield
        finally:
            over.set()
        for future in futures:
            future.result()
