"""What the service adds to the model call of a request: in seconds, and beside a bare route of FastAPI."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from service.measure.rounds import Log, paired_median_ratio
from service.selftest.bare_route import bare_route
from service.selftest.check import Check
from service.selftest.results import CheckResult, interval_result
from service.selftest.running_service import Connection, RunningService
from service.statistics.intervals import median_interval

ROUNDS = 40
REQUESTS = 5
UNCOUNTED = 2
"""First rounds that are run and not counted."""

MOST_SECONDS = 1.2e-3
MOST_RATIO = 1.2
MODE = "inference_mode"


def added_seconds(timings: Mapping[str, Any]) -> float:
    """The client's latency less the wall time of all steps."""
    model = sum(timings[phase]["wall_seconds"] for phase in ("prefill", "decode"))
    return float(timings["latency_seconds"] - model)


def measure_added(service: RunningService, log: Log) -> dict[str, list[float]]:
    """Per round, each the median of some requests: seconds that the `service` adds to its model calls, and
    that a `bare` route takes to answer the same bytes with the same JSON.

    The two take turns request by request, so that both find the caches as a model call leaves them.
    """
    mode = MODE if MODE in service.modes else service.modes[-1]
    found: dict[str, list[float]] = {"service": [], "bare": []}
    with TemporaryDirectory(prefix="launchbound-") as folder, service.connection() as served:
        answer, _ = served.answer(mode)
        with bare_route(answer, Path(folder)) as url, closing(Connection(url)) as bare:
            for number in range(UNCOUNTED + ROUNDS):
                log(f"round {number + 1} of {UNCOUNTED + ROUNDS}")
                pairs = [(served.generate(mode), bare.generate(mode)) for _ in range(REQUESTS)]
                if number >= UNCOUNTED:
                    found["service"].append(median(added_seconds(timings) for timings, _ in pairs))
                    found["bare"].append(median(float(timings["latency_seconds"]) for _, timings in pairs))
    return found


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
