"""One request through the service's own code in one process: measured and recorded, or only answered."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter_ns

import msgspec
from prometheus_client import CollectorRegistry

from models.opening import open_tokenizer
from service.engine.generation import Generator
from service.engine.job_result import JobResult
from service.engine.known_floors import KnownFloors
from service.engine.local_inbox import LocalInbox, local_job
from service.engine.outcome import build_outcome
from service.engine.request_profiler import RequestProfiler
from service.engine.request_samples import RequestSamples
from service.engine.timings import timings
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming, add_up
from service.measure.cases import Bench
from service.protocol.floors import Floor
from service.protocol.messages import Phase
from service.protocol.modes import MODES
from service.selftest.checks import NEW_TOKENS, PROMPT
from service.step.calibration import Calibration, twin_inputs
from service.step.callables import Step, build_step
from service.step.meters import Meter, new_meter
from service.step.untimed import CALLS_TO_CAPTURE

BUCKET = 1
FULL_WINDOWS = 4
"""Calls of `first_samples` that fill a floor's window, as in service: a floor is computed from all of it."""


def warm_calibration(bench: Bench, mode: str) -> Calibration:
    """The calibration of `mode` at batch 1, with as many samples as it keeps. Raises NoTwin."""
    twin = bench.model.twin()
    calibration = Calibration(bench.model, twin)
    step = build_step(MODES[mode], calibration.twin_of(MODES[mode]), precision=bench.precision)
    for phase, bucket, arguments in twin_inputs(twin, [BUCKET], bench.precision.cache, bench.buffers[BUCKET]):
        for _ in range(CALLS_TO_CAPTURE):
            step(*arguments)
        calibration.add(MODES[mode], phase, bucket, step, arguments)
    for _ in range(FULL_WINDOWS):
        calibration.first_samples(mode)
    return calibration


class RequestPath:
    """From the job to the sum of its parts, in `mode` at batch 1: what engine and front run for a request.

    Transport, parsing and serialising are left out: they are the same with and without measuring.
    """

    def __init__(self, bench: Bench, mode: str, calibration: Calibration, traces_folder: Path) -> None:
        self._mode = mode
        self._floors = KnownFloors(calibration.floor)
        self._steps: dict[tuple[Phase, int], Step] = {
            ("prefill", BUCKET): bench.case(mode, BUCKET, "prefill").step,
            ("decode", BUCKET): bench.case(mode, BUCKET, "decode").step,
        }
        config = bench.model.config
        tokenizer = open_tokenizer(bench.settings.model, config.vocabulary)
        self._generator = Generator(tokenizer, bench.buffers, config.context, LocalInbox([]))
        self._profiler = RequestProfiler(bench.device, 0, traces_folder)
        self._full = new_meter(bench.device, BUCKET, "full")
        self._off = new_meter(bench.device, BUCKET, "off")
        self.metrics = Metrics(CollectorRegistry(), [mode], [BUCKET], {"version": "", "commit": ""})

    def measured(self) -> RequestTiming:
        """With full instrumentation: meters, the floor as it is known of the calibration, all metrics."""
        timing = self._request(self._full, with_floor=True)
        self.metrics.observe(timing)
        return timing

    def sampled(
        self, samples: RequestSamples, prompt: str | list[int] = PROMPT, new_tokens: int = NEW_TOKENS
    ) -> JobResult:
        """With its steps sampled as it runs: what was read of them, the samples included."""
        result = JobResult()
        job = local_job("request", self._mode, [prompt], new_tokens, ignore_eos=True)
        samples.run(result, self._full, lambda meter: self._generator.run(job, self._steps, result, meter))
        return result

    def unmeasured(self, prompt: str | list[int] = PROMPT, new_tokens: int = NEW_TOKENS) -> RequestTiming:
        """With instrumentation off: the same answer, and nothing is read, calibrated or recorded."""
        return self._request(self._off, with_floor=False, prompt=prompt, new_tokens=new_tokens)

    def _request(
        self,
        meter: Meter,
        with_floor: bool,
        prompt: str | list[int] = PROMPT,
        new_tokens: int = NEW_TOKENS,
    ) -> RequestTiming:
        received_ns = perf_counter_ns()
        job = local_job("request", self._mode, [prompt], new_tokens, ignore_eos=True)
        job = msgspec.structs.replace(job, sent_ns=received_ns)
        result = JobResult(taken_ns=perf_counter_ns())
        self._generator.run(job, self._steps, result, meter)
        floors: dict[Phase, Floor | None] = {}
        if with_floor:
            floors = self._floors.of(self._mode, result.bucket)
        estimates = self._profiler.estimates(job, result, floors)
        outcome = build_outcome(job, result, None, lambda done_ns: timings(result, estimates, done_ns))
        now_ns = perf_counter_ns()
        return add_up(job, outcome, received_ns, now_ns, now_ns)
