"""Checks of whole requests in this process: what measuring costs, and the service beside a minimal loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, perf_counter_ns

import msgspec
import torch
from prometheus_client import CollectorRegistry
from torch import Tensor

from models.opening import resolve
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.job import JobResult
from service.engine.outcome import build_outcome, timings
from service.engine.profiler import RequestProfiler
from service.engine.step_shares import StepShares
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming, add_up
from service.measure.cases import Bench
from service.measure.cpu_sampler import counts_of
from service.measure.rounds import Log, in_rounds, isolated
from service.proof.rows import Property, Row
from service.proof.running_service import NEW_TOKENS, PROMPT
from service.proof.split import sampler_of
from service.records import PHASES, EngineSettings, Job, Phase, SampleCounts
from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.compile_cache import compile_cache
from service.step.meters import new_meter
from service.step.process_state import prepare_process

BUCKET = 1
UNCOUNTED = 2
"""First requests, rounds or jobs that are run and not counted."""


def _seconds(request: Callable[[], object], requests: int = 1) -> float:
    """The median of some requests in a row."""
    found = []
    for _ in range(requests):
        began = perf_counter_ns()
        request()
        found.append((perf_counter_ns() - began) / 1e9)
    return median(found)


# What measuring and recording a request costs


class RequestPath:
    """From the job to the sum of its parts, in `mode` at batch 1: what engine and front run for a request.

    Transport, parsing and serialising are left out: they are the same with and without measuring.
    """

    def __init__(self, bench: Bench, mode: str, traces_folder: Path) -> None:
        self._mode = mode
        self._steps = {(phase, BUCKET): bench.case(mode, BUCKET, phase).step for phase in PHASES}
        config = bench.model.config
        tokenizer = resolve(bench.settings.model).tokenizer(config.vocabulary)
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

    def busy_seconds(self, requests: int = 1) -> float:
        """As `_seconds` of measured ones: the steps are sampled already, as where one follows another."""
        with self._shares.sampling():
            found = _seconds(self.measured, requests)
        self._shares.rest()
        return found

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
        newest = {phase: self._shares.newest(self._mode, phase, BUCKET) for phase in PHASES}
        estimates = self._profiler.estimates(job, result, newest)
        outcome = build_outcome(job, result, None, lambda done_ns: timings(result, estimates, done_ns))
        now_ns = perf_counter_ns()
        return add_up(job, outcome, received_ns, now_ns, now_ns)


INSTRUMENTATION_ROUNDS = 300
REQUESTS = 3
MEASURING = Property("instrumentation full / off, whole request", "≤ 1.01", most=1.01)


def measure_instrumentation(bench: Bench, log: Log) -> dict[str, list[float]]:
    """Seconds per request, `full` and `off` taking turns, in the mode whose steps are shortest.

    Of either, the median of a few requests in a row. What an engine does once a second, between requests, to
    count its samples is not in it.
    """
    log("building")
    with TemporaryDirectory(prefix="launchbound-") as folder, bench.isolated():
        path = RequestPath(bench, bench.modes[-1], Path(folder))
        for _ in range(UNCOUNTED):
            path.measured()
            path.unmeasured()
        variants: dict[str, Callable[[], float]] = {
            "full": partial(path.busy_seconds, REQUESTS),
            "off": partial(_seconds, path.unmeasured, REQUESTS),
        }
        return in_rounds(variants, INSTRUMENTATION_ROUNDS, "instrumentation", log)


def judge_instrumentation(found: Mapping[str, list[float]]) -> list[Row]:
    full, off = found["full"], found["off"]
    added = median(a - b for a, b in zip(full, off, strict=True))
    note = f"{added * 1e6:.0f} µs of requests of {median(off) * 1e3:.1f} ms: meters, samples, metrics"
    return [MEASURING.ratio(full, off, note=note)]


# The service's code over the same requests in a minimal loop without meters, by mode

LOOP_ROUNDS = 120
LOOP = Property("the service's code / a minimal loop, whole request", "≤ 1.03", most=1.03)


class MinimalLoop:
    """What one writes around a step to generate greedily: no clock, no deadline, no streaming, no records.

    On the same steps and static buffers as the engine's generation, with the same text as its result.
    `around` may put something of a check around its steps.
    """

    def __init__(
        self, bench: Bench, mode: str, around: Callable[[Step, Phase], Step] = lambda step, _: step
    ) -> None:
        self._prefill = around(bench.case(mode, BUCKET, "prefill").step, "prefill")
        self._decode = around(bench.case(mode, BUCKET, "decode").step, "decode")
        self._buffers = bench.buffers[BUCKET]
        self._tokenizer = resolve(bench.settings.model).tokenizer(bench.model.config.vocabulary)

    def run(self, new_tokens: int = NEW_TOKENS) -> str:
        buffers = self._buffers
        prompt = self._tokenizer.encode(PROMPT)
        used = len(prompt)
        length = buffers.padded(used)
        arguments = buffers.arguments("prefill", length)
        arguments[0].copy_(torch.tensor([prompt + [0] * (length - used)]))
        buffers.positions.zero_()
        buffers.last.fill_(used - 1)
        _, token = self._prefill(*arguments)
        buffers.positions.fill_(used)
        buffers.last.zero_()
        tokens = [int(token)]
        while len(tokens) < new_tokens:
            used += 1
            buffers.token_row.copy_(token)
            _, token = self._decode(*buffers.arguments("decode", reach=buffers.reach(used)))
            buffers.positions.add_(buffers.one)
            tokens.append(int(token))
        return self._tokenizer.decode(tokens)


def measure_minimal_loop(bench: Bench, log: Log) -> dict[tuple[str, str], list[float]]:
    """Seconds per request by mode, through the `service`'s code and in the `minimal` loop, in turns.

    Raises RuntimeError where the two differ in a text.
    """
    with TemporaryDirectory(prefix="launchbound-") as folder, bench.isolated():
        variants: dict[tuple[str, str], Callable[[], float]] = {}
        for mode in bench.modes:
            log(f"warming {mode}")
            path = RequestPath(bench, mode, Path(folder))
            loop = MinimalLoop(bench, mode)
            served, alone = path.measured().outcome.outputs[0].text, loop.run()
            if served != alone:
                raise RuntimeError(
                    f"{mode} gives {served!r} in the engine's loop, {alone!r} in a minimal one"
                )
            variants[mode, "service"] = path.busy_seconds
            variants[mode, "minimal"] = partial(_seconds, loop.run)
        in_rounds(variants, UNCOUNTED, "minimal-loop uncounted", log)
        return in_rounds(variants, LOOP_ROUNDS, "minimal-loop", log)


def judge_minimal_loop(found: Mapping[tuple[str, str], list[float]]) -> Iterator[Row]:
    for mode in dict.fromkeys(mode for mode, _ in found):
        service, minimal = found[mode, "service"], found[mode, "minimal"]
        added = median(a - b for a, b in zip(service, minimal, strict=True))
        note = f"{added * 1e6:.0f} µs of requests of {median(minimal) * 1e3:.1f} ms"
        yield LOOP.ratio(service, minimal, f", {mode}", note)


class SampledRequests:
    """Requests in a minimal loop at batch 1, on `cpus`, whose steps are sampled without anything of what
    serving does for that. Raises NotMeasurableError where none can be sampled.
    """

    def __init__(self, settings: EngineSettings, cpus: list[int], modes: list[str]) -> None:
        prepare_process(settings.cache_folder, settings.model)
        self._cpus = cpus
        bench = Bench(settings)
        self._sampler = sampler_of(bench)
        with torch.no_grad():
            self._loops = {mode: MinimalLoop(bench, mode, self._labelled) for mode in modes}

    @torch.no_grad()
    def run(self, mode: str, new_tokens: int, seconds: float) -> dict[Phase, SampleCounts]:
        """The samples of both phases of requests in a row for so long, at least of one."""
        with isolated(self._cpus):
            self._loops[mode].run(1)
            until = perf_counter() + seconds
            self._sampler.start()
            self._loops[mode].run(new_tokens)
            while perf_counter() < until:
                self._loops[mode].run(new_tokens)
            self._sampler.stop()
        taken = self._sampler.take()
        return {
            phase: counts_of([place for label, place in taken if label == number])
            for number, phase in enumerate(PHASES, 1)
        }

    def _labelled(self, step: Step, phase: Phase) -> Step:
        cell, label = self._sampler.label, PHASES.index(phase) + 1

        def run(*arguments: *Arguments) -> tuple[Tensor, Tensor]:
            cell.value = label
            try:
                return step(*arguments)
            finally:
                cell.value = 0

        return run
