"""The cost of measuring: requests that are measured and recorded over requests that are only answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns

import msgspec

from models.served import NoTwin
from service.measure.cases import Bench
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.request_path import RequestPath, warm_calibration
from service.selftest.results import CheckResult, interval_result

ROUNDS = 300
REQUESTS = 3
UNCOUNTED = 2
MOST_RATIO = 1.01
NAME = "instrumentation full / off, whole request"
BOUND = "≤ 1.01"


def measure_instrumentation(variants: Variants, log: Log) -> dict[str, list[float]]:
    """Seconds per request, `full` and `off` taking turns, in the mode whose steps are shortest.

    Raises NotMeasurableError for a model without a twin.
    """
    mode = variants.modes[-1]
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[1], context=None))
    try:
        calibration = warm_calibration(bench, mode)
    except NoTwin as error:
        raise NotMeasurableError(str(error)) from error
    with TemporaryDirectory(prefix="launchbound-") as folder, variants.isolated():
        path = RequestPath(bench, mode, calibration, Path(folder))
        arms = {"full": partial(_seconds, path.measured), "off": partial(_seconds, path.unmeasured)}
        for _ in range(UNCOUNTED):
            path.measured()
            path.unmeasured()
        return in_rounds(arms, ROUNDS, "instrumentation", log)


def _seconds(request: Callable[[], object]) -> float:
    """The median of a few requests in a row."""
    found = []
    for _ in range(REQUESTS):
        began = perf_counter_ns()
        request()
        found.append((perf_counter_ns() - began) / 1e9)
    return median(found)


def judge_instrumentation(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """Measured requests over unmeasured ones, paired by round."""
    full, off = found["full"], found["off"]
    added = median(a - b for a, b in zip(full, off, strict=True))
    return [
        interval_result(
            NAME,
            BOUND,
            paired_median_ratio(full, off),
            most=MOST_RATIO,
            note=f"{added * 1e6:.0f} µs of requests of {median(off) * 1e3:.1f} ms: meters, floors, metrics",
            numbers={"full_seconds": full, "off_seconds": off},
        )
    ]


INSTRUMENTATION = Check(measure_instrumentation, judge_instrumentation, ((NAME, BOUND),))
