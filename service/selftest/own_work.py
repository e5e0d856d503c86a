"""The engine's own work between two decode steps, measured in process without a front."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from statistics import mean, median
from time import perf_counter_ns

import msgspec
from torch import Tensor

from models.opening import open_tokenizer
from service.engine.generation import POLL_NS, Generator
from service.engine.inbox import Inbox
from service.engine.job_result import JobResult
from service.engine.local_inbox import local_job
from service.measure.cases import Bench
from service.measure.rounds import Log
from service.measure.variants import Variants
from service.protocol.modes import MODES
from service.selftest.check import Check
from service.selftest.checks import NEW_TOKENS, PROMPT
from service.selftest.front_socket import front_socket
from service.selftest.results import CheckResult, interval_result
from service.statistics.intervals import median_interval
from service.step.buffers import Arguments
from service.step.callables import Step, build_step
from service.step.meters import Meter, Readings, new_meter

UNCOUNTED = 2
"""First jobs that are run and not counted."""

JOBS = 30
MODE = "inference_mode"
MOST_SECONDS = 30e-6


class TimestampingMeter:
    """Another meter that also records when each call began and ended, in nanoseconds."""

    def __init__(self, inner: Meter) -> None:
        self._inner = inner
        self.calls: list[tuple[int, int]] = []

    def run(self, step: Step, arguments: Arguments, readings: Readings) -> tuple[Tensor, Tensor]:
        """As the inner meter, between two readings of the clock."""
        began = perf_counter_ns()
        result = self._inner.run(step, arguments, readings)
        self.calls.append((began, perf_counter_ns()))
        return result

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """As the inner meter."""
        return self._inner.fetch(tokens, readings)


def gaps_seconds(calls: list[tuple[int, int]], result: JobResult) -> float:
    """Median time between two of `calls` (begin, end), less the wait for the device.

    Of means over as many in a row as the time has between two looks for cancellations, so that each has one.
    """
    between = [after[0] - before[1] for before, after in pairwise(calls)]
    waited = [*result.prefill.wait, *result.decode.wait][: len(between)] or [0] * len(between)
    own = [gap - wait for gap, wait in zip(between, waited, strict=True)]
    period_ns = median(after[0] - before[0] for before, after in pairwise(calls))
    size = min(len(own), max(1, round(POLL_NS / period_ns)))
    return median(mean(own[first : first + size]) for first in range(len(own) - size + 1)) / 1e9


def measure_own_work(variants: Variants, log: Log) -> dict[str, list[float]]:
    """Seconds per job, between two calls: buffers, checks, meters, tokens; with the real inbox."""
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[1], context=None))
    config = bench.model.config
    step = build_step(MODES[MODE], bench.model, precision=bench.precision)
    tokenizer = open_tokenizer(bench.settings.model, config.vocabulary)
    found: list[float] = []
    with front_socket() as (address, _):
        inbox = Inbox(address)
        generator = Generator(tokenizer, bench.buffers, config.context, inbox)
        with variants.isolated():
            for number in range(JOBS):
                log(f"job {number + 1} of {JOBS}")
                meter = TimestampingMeter(new_meter(bench.device, 1, "full"))
                result = JobResult()
                job = local_job(f"own-{number}", MODE, [PROMPT], NEW_TOKENS, ignore_eos=True)
                generator.run(job, {("prefill", 1): step, ("decode", 1): step}, result, meter)
                found.append(gaps_seconds(meter.calls, result))
        inbox.close()
    return {"own": found[UNCOUNTED:]}


def judge_own_work(found: Mapping[str, list[float]]) -> list[CheckResult]:
    """The median job's."""
    own = median_interval(found["own"])
    value, low, high = (seconds * 1e6 for seconds in (own.value, own.low, own.high))
    return [
        interval_result(
            "engine's own work per decode step",
            "≤ 30 µs",
            own,
            most=MOST_SECONDS,
            unit="s",
            note=f"{value:.1f} µs [{low:.1f}, {high:.1f}], {MODE}, batch 1",
            numbers={"seconds": found["own"]},
        )
    ]


OWN_WORK = Check(measure_own_work, judge_own_work)
