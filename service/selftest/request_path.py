"""Requests through the service's own code in one process, and what measuring and recording them costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns

import msgspec
from prometheus_client import CollectorRegistry

from models.opening import open_tokenizer
from service.engine.generation import Generator
from service.engine.job_result import JobResult
from service.engine.local_inbox import LocalInbox, local_job
from service.engine.outcome import build_outcome, timings
from service.engine.request_profiler import RequestProfiler
from service.engine.step_shares import StepShares
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming, add_up
from service.measure.cases import Bench
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.protocol.messages import Job, Phase
from service.selftest.check import Check
from service.selftest.checks import NEW_TOKENS, PROMPT
from service.selftest.results import CheckResult, interval_result
from service.step.callables import Step
from service.step.compile_cache import compile_cache
from service.step.meters import new_meter

BUCKET = 1


class RequestPath:
    """From the job to the sum of its parts, in `mode` at batch 1: what engine and front run for a request.

    Transport, parsing and serialising are left out: they are the same with and without measuring.
    """

    def __init__(self, bench: Bench, mode: str, traces_folder: Path) -> None:
        self._mode = mode
        self._steps: dict[tuple[Phase, int], Step] = {
            ("prefill", BUCKET): bench.case(mode, BUCKET, "prefill").step,
            ("decode", BUCKET): bench.case(mode, BUCKET, "decode").step,
        }
        config = bench.model.config
        tokenizer = open_tokenizer(bench.settings.model, config.vocabulary)
        self._generator = Generator(tokenizer, bench.buffers, config.context, LocalInbox([]))
        self._profiler = RequestProfiler(bench.device, 0, traces_folder)
        on_cuda = None if bench.device.type == "cpu" else "dispatch is measured"
        self._shares = StepShares(compile_cache(bench.settings.cache_folder), on_cuda)
        self._shares.add(mode, self._steps)
        self._full = new_meter(bench.device, BUCKET, "full", self._shares.labels)
        self._off = new_meter(bench.device, BUCKET, "off")
        self.metrics = Metrics(CollectorRegistry(), [mode], [BUCKET], {"version": "", "commit": ""})

    def measured(self) -> RequestTiming:
        """With full instrumentation: meters, samples in the background, all metrics."""
        job, result, received_ns = self._begun()
        with self._shares.sampling() as found:
            self._generator.run(job, self._steps, result, self._full)
        result.prefill.samples = found.get((self._mode, "prefill", BUCKET))
        result.decode.samples = found.get((self._mode, "decode", BUCKET))
        timing = self._added_up(job, result, received_ns)
        self.metrics.observe(timing)
        return timing

    def unmeasured(self) -> RequestTiming:
        """With instrumentation off: the same answer, and nothing is read, sampled or recorded."""
        job, result, received_ns = self._begun()
        self._generator.run(job, self._steps, result, self._off)
        return self._added_up(job, result, received_ns)

    def _begun(self) -> tuple[Job, JobResult, int]:
        received_ns = perf_counter_ns()
        job = local_job("request", self._mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        job = msgspec.structs.replace(job, sent_ns=received_ns)
        return job, JobResult(taken_ns=perf_counter_ns()), received_ns

    def _added_up(self, job: Job, result: JobResult, received_ns: int) -> RequestTiming:
        phases: tuple[Phase, ...] = ("prefill", "decode")
        newest = {phase: self._shares.newest(self._mode, phase, BUCKET) for phase in phases}
        estimates = self._profiler.estimates(job, result, newest)
        outcome = build_outcome(job, result, None, lambda done_ns: timings(result, estimates, done_ns))
        now_ns = perf_counter_ns()
        return add_up(job, outcome, received_ns, now_ns, now_ns)


ROUNDS = 300
REQUESTS = 3
UNCOUNTED = 2
MOST_RATIO = 1.01
NAME = "instrumentation full / off, whole request"
BOUND = f"≤ {MOST_RATIO}"


def measure_instrumentation(variants: Variants, log: Log) -> dict[str, list[float]]:
    """Seconds per request, `full` and `off` taking turns, in the mode whose steps are shortest."""
    log("building")
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[BUCKET], context=None))
    with TemporaryDirectory(prefix="launchbound-") as folder, variants.isolated():
        path = RequestPath(bench, variants.modes[-1], Path(folder))
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
            note=f"{added * 1e6:.0f} µs of requests of {median(off) * 1e3:.1f} ms: meters, samples, metrics",
            numbers={"full_seconds": full, "off_seconds": off},
        )
    ]


INSTRUMENTATION = Check(measure_instrumentation, judge_instrumentation, ((NAME, BOUND),))
