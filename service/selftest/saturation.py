"""What of a saturated engine's time is model steps: its throughput over that of the bare steps in a row."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from service.measure.rounds import Log
from service.selftest.check import Check
from service.selftest.results import CheckResult, interval_result
from service.selftest.running_service import RunningService
from service.statistics.intervals import median_interval

USERS = 4
REQUESTS = 8
"""Per user and round."""

ROUNDS = 12
UNCOUNTED = 1
LEAST_SHARE = 0.95


def measure_saturation(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round the `elapsed` seconds of a burst of requests, and the wall seconds of all of its `steps`.

    In the mode whose steps are shortest. A burst begins with an idle engine and ends with the last answer, so
    that one request's way in and out counts against the service.
    """
    mode = service.modes[-1]
    found: dict[str, list[float]] = {"elapsed": [], "steps": []}
    for number in range(UNCOUNTED + ROUNDS):
        log(f"round {number + 1} of {UNCOUNTED + ROUNDS}")
        began = perf_counter()
        answers = _burst(service, mode)
        elapsed = perf_counter() - began
        if number >= UNCOUNTED:
            found["elapsed"].append(elapsed)
            walls = (timings[phase]["wall_seconds"] for timings in answers for phase in ("prefill", "decode"))
            found["steps"].append(float(sum(walls)))
    return found


def _burst(service: RunningService, mode: str) -> list[dict[str, Any]]:
    def user(_: int) -> list[dict[str, Any]]:
        with service.connection() as connection:
            return [connection.generate(mode) for _ in range(REQUESTS)]

    with ThreadPoolExecutor(USERS) as pool:
        return [timings for found in pool.map(user, range(USERS)) for timings in found]


def judge_saturation(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """The median round's share."""
    shares = [steps / elapsed for steps, elapsed in zip(found["steps"], found["elapsed"], strict=True)]
    return [
        interval_result(
            f"throughput at concurrency {USERS} / the same steps in a row",
            f"≥ {LEAST_SHARE}",
            median_interval(shares),
            least=LEAST_SHARE,
            note=f"{USERS * REQUESTS} requests per round, steps by the engine's own clock",
            numbers={"elapsed_seconds": found["elapsed"], "steps_seconds": found["steps"]},
        )
    ]


SATURATION = Check(measure_saturation, judge_saturation)
