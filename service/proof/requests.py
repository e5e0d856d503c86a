"""Checks of whole requests in this process: what measuring costs, the service's code beside a minimal loop,
the engine's own work between two steps, and that a step does the work that is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from time import perf_counter, perf_counter_ns
from typing import NamedTuple

import msgspec
import torch
from prometheus_client import CollectorRegistry
from torch import Tensor

from models.opening import open_tokenizer
from models.served import Cache
from service.engine.generation import POLL_NS, Generator, JobResult
from service.engine.inbox import Inbox, LocalInbox, local_job
from service.engine.outcome import build_outcome, timings
from service.engine.profiler import RequestProfiler
from service.engine.step_shares import StepShares
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming, add_up
from service.measure.cases import Bench, Variants
from service.measure.cpu_sampler import SamplerError, counts_of
from service.measure.rounds import Log, in_rounds, isolated
from service.modes import MODES
from service.proof.rows import Check, NotMeasurableError, Property, Row
from service.proof.running_service import NEW_TOKENS, PROMPT, FrontSocket
from service.records import PHASES, EngineSettings, Job, Phase, SampleCounts
from service.statistics.intervals import median_interval
from service.step.buffers import Arguments
from service.step.callables import Step, build_step
from service.step.compile_cache import compile_cache
from service.step.meters import Meter, Readings, new_meter
from service.step.process_state import prepare_process

BUCKET = 1
UNCOUNTED = 2
"""First requests, rounds or jobs that are run and not counted."""


def _bench_of(variants: Variants, batch: int, context: int | None = None) -> Bench:
    return Bench(msgspec.structs.replace(variants.settings, batch_sizes=[batch], context=context))


def _steps(bench: Bench, mode: str, bucket: int) -> dict[tuple[Phase, int], Step]:
    return {(phase, bucket): bench.case(mode, bucket, phase).step for phase in PHASES}


def _seconds(request: Callable[[], object]) -> float:
    began = perf_counter_ns()
    request()
    return (perf_counter_ns() - began) / 1e9


# What measuring and recording a request costs


class RequestPath:
    """From the job to the sum of its parts, in `mode` at batch 1: what engine and front run for a request.

    Transport, parsing and serialising are left out: they are the same with and without measuring.
    """

    def __init__(self, bench: Bench, mode: str, traces_folder: Path) -> None:
        self._mode = mode
        self._steps = _steps(bench, mode, BUCKET)
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

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Within, the steps are sampled already, as where one request follows another."""
        with self._shares.sampling():
            yield
        self._shares.rest()

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


def measure_instrumentation(variants: Variants, log: Log) -> dict[str, list[float]]:
    """Seconds per request, `full` and `off` taking turns, in the mode whose steps are shortest.

    Of either, the median of a few requests in a row. What an engine does once a second, between requests, to
    count its samples is not in it.
    """
    log("building")
    bench = _bench_of(variants, BUCKET)

    def seconds(request: Callable[[], object]) -> float:
        return median([_seconds(request) for _ in range(REQUESTS)])

    def full() -> float:
        with path.busy():
            return seconds(path.measured)

    with TemporaryDirectory(prefix="launchbound-") as folder, variants.isolated():
        path = RequestPath(bench, variants.modes[-1], Path(folder))
        for _ in range(UNCOUNTED):
            path.measured()
            path.unmeasured()
        arms = {"full": full, "off": partial(seconds, path.unmeasured)}
        return in_rounds(arms, INSTRUMENTATION_ROUNDS, "instrumentation", log)


def judge_instrumentation(found: Mapping[str, list[float]]) -> list[Row]:
    """Measured requests over unmeasured ones, paired by round."""
    full, off = found["full"], found["off"]
    added = median(a - b for a, b in zip(full, off, strict=True))
    note = f"{added * 1e6:.0f} µs of requests of {median(off) * 1e3:.1f} ms: meters, samples, metrics"
    return [MEASURING.ratio("", note, full=full, off=off)]


INSTRUMENTATION = Check(measure_instrumentation, judge_instrumentation, (MEASURING,))


# The service's code over the same requests in a minimal loop without meters, by mode

LOOP_ROUNDS = 120
LOOP = Property("the service's code / a minimal loop, whole request", "≤ 1.03", most=1.03)

LoopArm = tuple[str, str]
"""Mode, and `service` or `minimal`."""


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
        self._tokenizer = open_tokenizer(bench.settings.model, bench.model.config.vocabulary)

    def run(self, new_tokens: int = NEW_TOKENS) -> str:
        """The text of one request of one prompt."""
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


def measure_minimal_loop(variants: Variants, log: Log) -> dict[LoopArm, list[float]]:
    """Seconds per request by mode, through the service's code and in the minimal loop, which take turns.

    Raises RuntimeError where the two differ in a text.
    """
    bench = _bench_of(variants, BUCKET)
    with TemporaryDirectory(prefix="launchbound-") as folder, variants.isolated():
        arms: dict[LoopArm, Callable[[], float]] = {}
        for mode in variants.modes:
            log(f"warming {mode}")
            path = RequestPath(bench, mode, Path(folder))
            loop = MinimalLoop(bench, mode)
            served, alone = path.measured().outcome.outputs[0].text, loop.run()
            if served != alone:
                raise RuntimeError(
                    f"{mode} gives {served!r} in the engine's loop, {alone!r} in a minimal one"
                )
            arms[mode, "service"] = partial(_busy_seconds, path)
            arms[mode, "minimal"] = partial(_seconds, loop.run)
        in_rounds(arms, UNCOUNTED, "minimal-loop uncounted", log)
        return in_rounds(arms, LOOP_ROUNDS, "minimal-loop", log)


def _busy_seconds(path: RequestPath) -> float:
    with path.busy():
        return _seconds(path.measured)


def judge_minimal_loop(found: Mapping[LoopArm, list[float]]) -> list[Row]:
    """A row per mode, paired by round."""
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        service, minimal = found[mode, "service"], found[mode, "minimal"]
        added = median(a - b for a, b in zip(service, minimal, strict=True))
        note = f"{added * 1e6:.0f} µs of requests of {median(minimal) * 1e3:.1f} ms"
        rows.append(LOOP.ratio(f", {mode}", note, service=service, minimal=minimal))
    return rows


MINIMAL_LOOP = Check(measure_minimal_loop, judge_minimal_loop)


class SampledRequests:
    """Requests in a minimal loop at batch 1, on `cpus`, whose steps are sampled without anything of what
    serving does for that. Raises NotMeasurableError where none can be sampled.
    """

    def __init__(self, settings: EngineSettings, cpus: list[int], modes: list[str]) -> None:
        prepare_process(settings.cache_folder, settings.model)
        self._cpus = cpus
        bench = Bench(settings)
        try:
            self._sampler = bench.sampler
        except SamplerError as error:
            raise NotMeasurableError(str(error)) from error
        with torch.no_grad():
            self._loops = {mode: MinimalLoop(bench, mode, self._labelled) for mode in modes}

    @torch.no_grad()
    def run(self, mode: str, new_tokens: int, seconds: float) -> dict[Phase, SampleCounts]:
        """The samples of both phases of requests in a row for so long, at least of one.

        A request before them is not sampled.
        """
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

        def run(tokens: Tensor, positions: Tensor, last: Tensor, cache: Cache) -> tuple[Tensor, Tensor]:
            cell.value = label
            try:
                return step(tokens, positions, last, cache)
            finally:
                cell.value = 0

        return run


# The engine's own work between two decode steps, without a front

JOBS = 30
OWN_MODE = "inference_mode"
OWN = Property("engine's own work per decode step", "≤ 30 µs", most=30e-6, unit="s")


class TimestampingMeter(Meter):
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
    bench = _bench_of(variants, 1)
    config = bench.model.config
    step = build_step(MODES[OWN_MODE], bench.model, precision=bench.precision)
    tokenizer = open_tokenizer(bench.settings.model, config.vocabulary)
    found: list[float] = []
    with closing(FrontSocket()) as front:
        inbox = Inbox(front.address)
        generator = Generator(tokenizer, bench.buffers, config.context, inbox)
        with variants.isolated():
            for number in range(JOBS):
                log(f"job {number + 1} of {JOBS}")
                meter = TimestampingMeter(new_meter(bench.device, 1, "full"))
                result = JobResult()
                job = local_job(f"own-{number}", OWN_MODE, [PROMPT], NEW_TOKENS, ignore_eos=True)
                generator.run(job, {("prefill", 1): step, ("decode", 1): step}, result, meter)
                found.append(gaps_seconds(meter.calls, result))
        inbox.close()
    return {"own": found[UNCOUNTED:]}


def judge_own_work(found: Mapping[str, list[float]]) -> list[Row]:
    """The median job's."""
    own = median_interval(found["own"])
    value, low, high = (seconds * 1e6 for seconds in (own.value, own.low, own.high))
    note = f"{value:.1f} µs [{low:.1f}, {high:.1f}], {OWN_MODE}, batch 1"
    return [OWN.within(own, "", note, {"seconds": found["own"]})]


OWN_WORK = Check(measure_own_work, judge_own_work)


# A step does the work that is asked. Requests run through the engine's own code, which decides what a step is
# called with. Were a decode step to read all of its cache, a longer context would lengthen it; were prompts
# padded to whole chunks, half a chunk would take as long as a whole one.

ASKED_ROUNDS = 24
SHORTER = 4
"""The longer context over the shorter one."""

LEAST_CHUNK = 16
LEAST_BATCH = 16
"""Of a prefill that is hardly anything but its tokens."""

CONTEXTS = Property("decode in a longer context / in a shorter one", "≤ 1.1", most=1.1)
PROMPTS = Property("prefill of half a chunk / of a whole one", "≤ 0.65", most=0.65)


class Arm(NamedTuple):
    """Steps of `mode`: decode in a context of `size`, or prefill of `size` tokens per row."""

    mode: str
    phase: Phase
    size: int
    batch: int


def measure_asked(variants: Variants, log: Log) -> dict[Arm, list[float]]:
    """Seconds per step by arm and round, at the largest batch: the median of a request's.

    Raises NotMeasurableError on CUDA, and where context or prefill chunk are too short.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("the host's clock ends before kernels do on CUDA")
    batch, chunk = max(variants.settings.batch_sizes), variants.settings.prefill_chunk
    log("building")
    long = _Requests(_bench_of(variants, batch))
    shorter = long.context // SHORTER
    if chunk < LEAST_CHUNK or shorter < 2 * chunk:
        raise NotMeasurableError(
            f"it needs a prefill chunk of {LEAST_CHUNK} tokens at least, and a context of eight chunks"
        )
    short = _Requests(_bench_of(variants, batch, shorter))
    arms: dict[Arm, Callable[[], float]] = {}
    for mode in variants.modes:
        log(f"{mode}, building")
        for requests in (long, short):
            requests.build(mode)
            arms[Arm(mode, "decode", requests.context, batch)] = partial(
                requests.decode_seconds, mode, half_of(chunk), chunk // 2
            )
        for tokens in (half_of(chunk), chunk):
            arms[Arm(mode, "prefill", tokens, batch)] = partial(long.prefill_seconds, mode, tokens)
    with variants.isolated():
        return in_rounds(arms, ASKED_ROUNDS, "asked", log)


def half_of(chunk: int) -> int:
    """Tokens of a prompt that is to be padded to half of `chunk` at most."""
    return chunk // 2 - 2


class _Requests:
    """Requests of as many rows as the largest batch, on the buffers of one context."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.context = bench.model.config.context
        (self._batch,) = bench.settings.batch_sizes
        tokenizer = open_tokenizer(bench.settings.model, bench.model.config.vocabulary)
        self._generator = Generator(tokenizer, bench.buffers, self.context, LocalInbox([]))
        self._meter = new_meter(bench.device, self._batch, "host")
        self._steps: dict[str, dict[tuple[Phase, int], Step]] = {}

    def build(self, mode: str) -> None:
        """Build and warm the steps of `mode`."""
        self._steps[mode] = _steps(self._bench, mode, self._batch)
        self._run(mode, half_of(self._bench.settings.prefill_chunk), 2)

    def decode_seconds(self, mode: str, prompt_tokens: int, new_tokens: int) -> float:
        """The median decode step of one request."""
        return median(self._run(mode, prompt_tokens, new_tokens).decode.call) / 1e9

    def prefill_seconds(self, mode: str, prompt_tokens: int) -> float:
        """The prefill step of the second of two requests."""
        self._run(mode, prompt_tokens, 1)
        return median(self._run(mode, prompt_tokens, 1).prefill.call) / 1e9

    def _run(self, mode: str, prompt_tokens: int, new_tokens: int) -> JobResult:
        prompts: list[str | list[int]] = [[0] * prompt_tokens for _ in range(self._batch)]
        job = local_job("request", mode, prompts, new_tokens, ignore_eos=True)
        result = JobResult()
        self._generator.run(job, self._steps[mode], result, self._meter)
        return result


def judge_asked(found: Mapping[Arm, list[float]]) -> list[Row]:
    """Two rows per mode, paired by round."""
    rows = []
    for mode in dict.fromkeys(arm.mode for arm in found):
        shorter, longer = sorted(arm for arm in found if arm.mode == mode and arm.phase == "decode")
        half, whole = sorted(arm for arm in found if arm.mode == mode and arm.phase == "prefill")
        name = f", {mode}, batch {half.batch}"
        rows.append(_asked_row(CONTEXTS, name, found, (longer, shorter)))
        if half.batch >= LEAST_BATCH:
            rows.append(_asked_row(PROMPTS, name, found, (half, whole)))
        else:
            few = f"a prefill at batch {half.batch} is more than its tokens"
            rows.append(PROMPTS.not_measurable(f"{few}: serve one of {LEAST_BATCH} or more", name))
    return rows


def _asked_row(claimed: Property, name: str, found: Mapping[Arm, list[float]], arms: tuple[Arm, Arm]) -> Row:
    above, below = (found[arm] for arm in arms)
    sizes = " and ".join(str(arm.size) for arm in arms)
    note = f"{sizes}: {median(above) * 1e3:.2f} and {median(below) * 1e3:.2f} ms"
    return claimed.ratio(name, note, above=above, below=below)


ASKED_WORK = Check(measure_asked, judge_asked, (CONTEXTS, PROMPTS))
