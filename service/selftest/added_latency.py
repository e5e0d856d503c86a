"""What the service adds to the model call of a request: in seconds, and beside a bare route of FastAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.selftest.bare_route import bare_route
from service.selftest.check import Check
from service.selftest.results import CheckResult, interval_result
from service.selftest.running_service import Connection, RunningService
from service.statistics.intervals import median_interval

ROUNDS = 40
REQUESTS = 5
UNCOUNTED = 5
MOST_SECONDS = 1.2e-3
MOST_RATIO = 1.2
MODE = "inference_mode"

Timings = Mapping[str, Any]
"""As `Connection.generate` returns them."""


def added_seconds(timings: Timings) -> float:
    """The client's latency less the wall time of all steps."""
    model = sum(timings[phase]["wall_seconds"] for phase in ("prefill", "decode"))
    return float(timings["latency_seconds"] - model)


def latency_seconds(timings: Timings) -> float:
    """The client's latency."""
    return float(timings["latency_seconds"])


def measure_added(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round, each the median of some requests in a row on one connection: seconds that the `service` adds
    to its model calls, and that a `bare` route takes to answer the same bytes with the same JSON.
    """
    mode = MODE if MODE in service.modes else service.modes[-1]
    with TemporaryDirectory(prefix="launchbound-") as folder, service.connection() as served:
        answer, _ = served.answer(mode)
        with bare_route(answer, Path(folder)) as url:
            bare = Connection(url)
            try:
                arms = {
                    "service": partial(_median, partial(served.generate, mode), added_seconds),
                    "bare": partial(_median, partial(bare.generate, mode), latency_seconds),
                }
                for arm in arms.values():
                    arm(UNCOUNTED)
                return in_rounds(arms, ROUNDS, "added", log)
            finally:
                bare.close()


def _median(
    request: Callable[[], Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], float],
    count: int = REQUESTS,
) -> float:
    return median(value(request()) for _ in range(count))


def judge_added(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """The median round, and the median of the rounds' ratios."""
    service, bare = found["service"], found["bare"]
    added, alone = median_interval(service), median_interval(bare)
    low, high = added.low * 1e3, added.high * 1e3
    note = f"{added.value * 1e3:.2f} ms [{low:.2f}, {high:.2f}], the client on the front's cores"
    return [
        interval_result(
            "the service adds to a model call, concurrency 1",
            "median ≤ 1.2 ms",
            added,
            most=MOST_SECONDS,
            unit="s",
            note=note,
            numbers={"seconds": service},
        ),
        interval_result(
            "what the service adds / a bare FastAPI route",
            f"≤ {MOST_RATIO}",
            paired_median_ratio(service, bare),
            most=MOST_RATIO,
            note=f"the bare route answers with the same JSON in {alone.value * 1e3:.2f} ms",
            numbers={"service_seconds": service, "bare_seconds": bare},
        ),
    ]


ADDED = Check(measure_added, judge_added)
