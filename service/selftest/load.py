"""Checks under load: step time at concurrency 8 against 1, time of a scrape, steps of a saturated engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median
from threading import Event
from time import perf_counter, sleep
from typing import Any, NamedTuple

from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.selftest.check import Check
from service.selftest.results import CheckResult, interval_result
from service.selftest.running_service import RunningService
from service.statistics.intervals import median_interval

CONCURRENCY = 8
ROUNDS = 16
REQUESTS = 8
MOST_RATIO = 1.05
SCRAPES = 40
LOADING_USERS = 4
SCRAPE_PAUSE_SECONDS = 0.1
MOST_SCRAPE_SECONDS = 0.010
SATURATING_USERS = 4
BURSTS = 12
UNCOUNTED = 1
LEAST_SHARE = 0.95


class _Round(NamedTuple):
    """One round at one concurrency: the median request's seconds per decode step, and the counts of all."""

    seconds: float
    switches: int
    steps: int


def measure_concurrency(service: RunningService, log: Log) -> dict[tuple[str, int], list[float]]:
    """By quantity and concurrency, per round: decode `seconds` per step, `switches` and `steps`.

    In the mode whose steps are shortest.
    """
    mode = service.modes[-1]

    def at(users: int) -> _Round:
        found = _burst(service, mode, users, max(1, REQUESTS // users))
        decodes = [timings["decode"] for timings in found]
        return _Round(
            seconds=float(median(decode["wall_seconds"] / decode["steps"] for decode in decodes)),
            switches=sum(timings["involuntary_switches"] for timings in found),
            steps=sum(decode["steps"] for decode in decodes),
        )

    arms = {users: partial(at, users) for users in (1, CONCURRENCY)}
    rounds = in_rounds(arms, ROUNDS, "concurrency", log)
    return {
        (quantity, users): [float(getattr(found, quantity)) for found in rounds[users]]
        for quantity in _Round._fields
        for users in rounds
    }


def judge_concurrency(found: Mapping[tuple[str, int], list[float]]) -> list[CheckResult]:
    """Decode wall per step at concurrency 8 over that at 1."""
    switches = {users: sum(found["switches", users]) for users in (1, CONCURRENCY)}
    steps = {users: sum(found["steps", users]) for users in (1, CONCURRENCY)}
    shown = ", ".join(f"{switches[users]:.0f} in {steps[users]:.0f} steps at {users}" for users in switches)
    alone, loaded = found["seconds", 1], found["seconds", CONCURRENCY]
    return [
        interval_result(
            f"step time, concurrency {CONCURRENCY} / 1",
            f"≤ {MOST_RATIO}",
            paired_median_ratio(loaded, alone),
            most=MOST_RATIO,
            note=f"involuntary switches of the engine: {shown}",
            numbers={
                "at_1_seconds": alone,
                "at_8_seconds": loaded,
                "switches_at_1": switches[1],
                "switches_at_8": switches[CONCURRENCY],
            },
        )
    ]


def _burst(service: RunningService, mode: str, users: int, each: int) -> list[dict[str, Any]]:
    """`users` requests in flight, `each` of one user after the other."""

    def user(_: int) -> list[dict[str, Any]]:
        with service.connection() as connection:
            return [connection.generate(mode) for _ in range(each)]

    with ThreadPoolExecutor(users) as pool:
        return [timings for found in pool.map(user, range(users)) for timings in found]


def measure_scrape(service: RunningService, log: Log) -> dict[str, list[float]]:
    """`seconds` and `bytes` of GET /metrics as a client sees them, while requests are in flight."""
    found: dict[str, list[float]] = {"seconds": [], "bytes": []}
    with _loaded(service), service.connection() as connection:
        for number in range(SCRAPES):
            log(f"scrape {number + 1} of {SCRAPES}")
            began = perf_counter()
            status, body = connection.get("/metrics")
            found["seconds"].append(perf_counter() - began)
            found["bytes"].append(len(body))
            if status != 200:
                raise RuntimeError(f"/metrics answered {status}")
            sleep(SCRAPE_PAUSE_SECONDS)
    return found


def judge_scrape(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """The median scrape."""
    middle = median_interval(found["seconds"])
    size = median(found["bytes"]) / 1024
    note = f"median {middle.value * 1e3:.1f} ms, {size:.0f} KiB, {LOADING_USERS} requests in flight"
    return [
        interval_result(
            "time of a /metrics scrape under load",
            "median ≤ 10 ms",
            middle,
            most=MOST_SCRAPE_SECONDS,
            unit="s",
            note=note,
            numbers={"seconds": found["seconds"]},
        )
    ]


@contextmanager
def _loaded(service: RunningService, users: int = LOADING_USERS) -> Iterator[None]:
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


def measure_saturation(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round the `elapsed` seconds of a burst of requests, and the wall seconds of all of its `steps`.

    In the mode whose steps are shortest. A burst begins with an idle engine and ends with the last answer, so
    that one request's way in and out counts against the service.
    """
    mode = service.modes[-1]
    found: dict[str, list[float]] = {"elapsed": [], "steps": []}
    for number in range(UNCOUNTED + BURSTS):
        log(f"round {number + 1} of {UNCOUNTED + BURSTS}")
        began = perf_counter()
        answers = _burst(service, mode, SATURATING_USERS, REQUESTS)
        elapsed = perf_counter() - began
        if number >= UNCOUNTED:
            found["elapsed"].append(elapsed)
            walls = (timings[phase]["wall_seconds"] for timings in answers for phase in ("prefill", "decode"))
            found["steps"].append(float(sum(walls)))
    return found


def judge_saturation(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """The median round's share."""
    shares = [steps / elapsed for steps, elapsed in zip(found["steps"], found["elapsed"], strict=True)]
    return [
        interval_result(
            f"throughput at concurrency {SATURATING_USERS} / the same steps in a row",
            f"≥ {LEAST_SHARE}",
            median_interval(shares),
            least=LEAST_SHARE,
            note=f"{SATURATING_USERS * REQUESTS} requests per round, steps by the engine's own clock",
            numbers={"elapsed_seconds": found["elapsed"], "steps_seconds": found["steps"]},
        )
    ]


CONCURRENCY_CHECK = Check(measure_concurrency, judge_concurrency)
SCRAPE = Check(measure_scrape, judge_scrape)
SATURATION = Check(measure_saturation, judge_saturation)
