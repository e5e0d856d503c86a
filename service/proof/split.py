"""Checks in this process: what sampling does to a CPU's shares and steps, equal kernels in modes that run the
same ones, on a GPU the profiler's own sum, what measuring a request costs, and a minimal loop beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean, median
from tempfile import TemporaryDirectory
from time import perf_counter, perf_counter_ns, thread_time_ns
from typing import NamedTuple

import numpy as np
import torch
from prometheus_client import CollectorRegistry
from torch import Tensor
from torch._C._autograd import DeviceType

from models.opening import resolve
from service.engine.generation import Generator
from service.engine.inbox import LocalInbox, local_job
from service.engine.job import JobResult
from service.engine.outcome import build_outcome, timings
from service.engine.profiler import RequestProfiler
from service.engine.step_shares import BACKGROUND_PER_SECOND, Key, StepShares
from service.front.metrics.recorder import Metrics
from service.front.request_timing import RequestTiming, add_up
from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import (
    SAMPLES_PER_SECOND,
    CpuSampler,
    SampledSteps,
    SamplerError,
    counts_of,
    sample_steps,
)
from service.measure.rounds import Log, in_rounds, isolated
from service.proof.rows import NEW_TOKENS, PROMPT, UNCOUNTED, NotMeasurableError, Property, Row
from service.records import PHASES, EngineSettings, Phase, SampleCounts
from service.statistics.boundedness import RATE
from service.statistics.intervals import mean_interval, median_interval
from service.step.buffers import Arguments
from service.step.callables import Step
from service.step.compile_cache import compile_cache
from service.step.meters import Meter, new_meter
from service.step.process_state import prepare_process
from service.step.profiling import Separator, chrome_events, profile_step, record_session
from service.step.trace import LEAD_MARK, STEP_MARK, read_steps

TIMED_SHARE = 0.25
"""Seconds of steps that are timed, per second of those that are sampled: a median needs fewer."""


class ServedStep(NamedTuple):
    """Mode, phase and batch bucket of a step."""

    mode: str
    phase: Phase
    bucket: int


def sampler_of(bench: Bench) -> CpuSampler:
    """The sampler of this thread. Raises NotMeasurableError on CUDA, and where it cannot be sampled."""
    if bench.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured")
    try:
        return bench.sampler
    except SamplerError as error:
        raise NotMeasurableError(str(error)) from error


def sampled(
    sampler: CpuSampler,
    case: Case,
    seconds: float,
    beside: Callable[[], object] | None = None,
    samples_per_second: float = SAMPLES_PER_SECOND,
) -> SampledSteps:
    """As `sample_steps`, of `case` for `seconds`. Raises NotMeasurableError where there is no sample."""
    run, timed = partial(case.step, *case.arguments), TIMED_SHARE * seconds
    found = sample_steps(sampler, run, case.phase, timed, seconds, beside, samples_per_second)
    if found is None:
        raise NotMeasurableError(f"no step of {case.mode} was sampled")
    return found


# What sampling does to the shares at the usual rate: behind each interrupt the code runs slower for a while.

RATE_ROUNDS = 24
MODES = ("eager", "compiled")
"""That are sampled at several rates, and in the background."""

RATES = (251, 499, SAMPLES_PER_SECOND, 1999)
"""Samples per second: primes, so that none keeps step with what happens every millisecond."""

RATE_SECONDS = 0.4
"""Sampled per round and rate: all rounds together tell a shift of one point of a share."""

SHIFTED = f"kernel share at {SAMPLES_PER_SECOND} samples per second less that at none"
SHIFT = Property(SHIFTED, f"± {RATE}", -RATE, RATE, "share")


def measure_rates(bench: Bench, log: Log) -> dict[tuple[ServedStep, int], list[SampledSteps]]:
    """Of decode steps at the smallest and the largest bucket, by round, at each rate."""
    sampler = sampler_of(bench)
    sizes = {min(bench.settings.batch_sizes), max(bench.settings.batch_sizes)}
    variants: dict[tuple[ServedStep, int], Callable[[], SampledSteps]] = {}
    for mode, size in product((mode for mode in MODES if mode in bench.modes), sorted(sizes)):
        log(f"{mode}, building")
        sample = partial(sampled, sampler, bench.case(mode, size, "decode"), RATE_SECONDS)
        for rate in RATES:
            variants[ServedStep(mode, "decode", size), rate] = partial(sample, samples_per_second=rate)
    with bench.isolated():
        return in_rounds(variants, RATE_ROUNDS, "rates", log)


def judge_rates(found: Mapping[tuple[ServedStep, int], list[SampledSteps]]) -> Iterator[Row]:
    """Per step, how far its share at the usual rate is from the end of the line through all rates."""
    for step in dict.fromkeys(step for step, _ in found):
        seen = [found[step, rate] for rate in RATES]
        shares = [[one.kernel_share for one in steps] for steps in seen]
        shifts = [beyond_none(by_rate) for by_rate in zip(*shares, strict=True)]
        shown = ", ".join(f"{fmean(values):.3f}" for values in shares)
        slowed = (median(one.sampled_seconds / one.step_seconds for one in steps) for steps in seen)
        times = ", ".join(f"{ratio:.2f}" for ratio in slowed)
        at = ", ".join(f"{rate:,}" for rate in RATES)
        note = f"{shown} at {at}; steps take {times} times as long"
        name = f": {step.mode}, {step.phase}, batch {step.bucket}"
        yield SHIFT.within(mean_interval(shifts), name, note)


def beyond_none(shares: Sequence[float]) -> float:
    """The share at SAMPLES_PER_SECOND less that at no sample a second, by a line through those at all RATES,
    each with the weight of its samples: of its rate, as each is sampled for as long.
    """
    _, at_none = np.polyfit(RATES, shares, 1, w=np.sqrt(RATES))
    return shares[RATES.index(SAMPLES_PER_SECOND)] - float(at_none)


# What sampling in the background costs

BLOCKS = 400
BLOCK_SECONDS = 0.05
FASTER = 4
"""Steps are sampled so many times as fast as in the background: the handler is still as cold and costs the
same, and what all samples cost stands out of the scatter."""

COST = Property("steps sampled in the background / unsampled", "≤ 1.01", most=1.01)


def measure_background(bench: Bench, log: Log) -> dict[tuple[str, str], list[float]]:
    """CPU seconds per decode step at batch 1, `sampled` and `unsampled`, in blocks that take turns."""
    sampler = sampler_of(bench)
    variants: dict[tuple[str, str], Callable[[], float]] = {}
    for mode in (mode for mode in MODES if mode in bench.modes):
        log(f"{mode}, building")
        case = bench.case(mode, 1)
        variants[mode, "sampled"] = partial(_sampled_seconds, sampler, case)
        variants[mode, "unsampled"] = partial(_block_seconds, case)
    with bench.isolated():
        return in_rounds(variants, BLOCKS, "background", log)


def _sampled_seconds(sampler: CpuSampler, case: Case) -> float:
    with sampler.recording(FASTER * BACKGROUND_PER_SECOND):
        return _block_seconds(case)


def _block_seconds(case: Case) -> float:
    """The mean step, because few of them have a sample."""
    arguments = case.arguments
    steps, began = 0, thread_time_ns()
    while (taken := thread_time_ns() - began) < BLOCK_SECONDS * 1e9 or not steps:
        case.step(*arguments)
        steps += 1
    return taken / steps / 1e9


def judge_background(found: Mapping[tuple[str, str], list[float]]) -> Iterator[Row]:
    """Per mode, paired by round: of what the faster samples cost, the background's share."""
    for mode in dict.fromkeys(mode for mode, _ in found):
        faster, off = found[mode, "sampled"], found[mode, "unsampled"]
        on = [plain + (sampled - plain) / FASTER for sampled, plain in zip(faster, off, strict=True)]
        rate = BACKGROUND_PER_SECOND
        note = f"{rate} samples per second of steps of {median(off) * 1e6:.0f} µs, from {FASTER * rate}"
        yield COST.ratio(on, off, f": {mode}, decode, batch 1", note)


# Modes that run the same kernels must show the same kernel time: what the host does, booked as kernel, makes
# them differ. So does a longer step, which leaves others more time with the caches: after each step of a mode
# that is faster than eager the thread is busy for the difference (docs/decisions/selftest.md).

PLAIN_ROUNDS = 16
KERNEL_SAMPLES = 240
"""Per step and round: its kernel time is known within 6 %, the median of the rounds' ratios within 5."""

FIRST_SECONDS, MOST_SECONDS = 0.2, 1.2
"""Of steps that are sampled: to learn the share of kernels, and at most, however small that is."""

REST_STEPS = 3
PLAIN = ("eager", "no_grad", "inference_mode")
EQUAL = Property("kernel time equal in the plain modes", "within 10 %", 0.9, 1.1)
NO_RATIO = 1e3
"""In place of the ratio of a round in which a mode shows no kernel time at all: far outside."""


def measure_plain(bench: Bench, log: Log) -> dict[ServedStep, list[SampledSteps]]:
    """Per mode, phase and bucket, by round."""
    sampler = sampler_of(bench)
    modes = plain_modes(bench)
    order = Random("plain-kernels")
    blocks: dict[tuple[Phase, int], Callable[[], dict[ServedStep, SampledSteps]]] = {}
    with bench.isolated():
        log("how long to sample")
        for phase, bucket in product(PHASES, bench.settings.batch_sizes):
            steps = [ServedStep(mode, phase, bucket) for mode in modes]
            cases = {step: bench.case(step.mode, bucket, phase) for step in steps}
            blocks[phase, bucket] = _block(sampler, cases, order)
        found = in_rounds(blocks, PLAIN_ROUNDS, "plain-kernels", log)
    return {step: [block[step] for block in rounds] for rounds in found.values() for step in rounds[0]}


def plain_modes(bench: Bench) -> list[str]:
    """Those of PLAIN that are served. Raises NotMeasurableError where there are no two, or no eager."""
    modes = [mode for mode in PLAIN if mode in bench.modes]
    if PLAIN[0] not in modes or len(modes) < 2:
        raise NotMeasurableError(f"it compares with {PLAIN[0]}, and at least two of its modes must be served")
    return modes


def _block(
    sampler: CpuSampler, cases: Mapping[ServedStep, Case], order: Random
) -> Callable[[], dict[ServedStep, SampledSteps]]:
    """Samples modes right after each other: what neighbours leave of the caches changes within seconds."""
    seconds = {}
    for step, case in cases.items():
        share = sampled(sampler, case, FIRST_SECONDS, _rest(cases, step)).kernel_share
        seconds[step] = min(MOST_SECONDS, KERNEL_SAMPLES / SAMPLES_PER_SECOND / max(share, 1e-3))

    def run() -> dict[ServedStep, SampledSteps]:
        steps = order.sample(list(cases), len(cases))
        return {step: sampled(sampler, cases[step], seconds[step], _rest(cases, step)) for step in steps}

    return run


def _rest(cases: Mapping[ServedStep, Case], step: ServedStep) -> Callable[[], object] | None:
    """What follows each call of `step`: as much time as eager's takes longer, at this moment."""
    case, eager = cases[step], cases[step._replace(mode=PLAIN[0])]
    if case is eager:
        return None
    return partial(busy_for, eager.steady_seconds(REST_STEPS) - case.steady_seconds(REST_STEPS))


def busy_for(seconds: float) -> None:
    """Keep the core, and touch no memory, for `seconds`; not at all where they are negative."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        continue


def judge_plain(found: Mapping[ServedStep, list[SampledSteps]]) -> Iterator[Row]:
    """Per phase and bucket, the other modes' kernel time over eager's, paired by round."""
    for step in sorted(found, key=lambda step: (step.phase, step.bucket)):
        if step.mode == PLAIN[0]:
            continue
        eager = found[step._replace(mode=PLAIN[0])]
        seconds, eagers = ([seen.kernel_seconds for seen in rounds] for rounds in (found[step], eager))
        ratios = [a / b if a > 0 and b > 0 else NO_RATIO for a, b in zip(seconds, eagers, strict=True)]
        name = f": {step.mode} / {PLAIN[0]}, {step.phase}, batch {step.bucket}"
        note = f"{median(seconds) * 1e6:.0f} µs against {median(eagers) * 1e6:.0f} µs"
        yield EQUAL.within(median_interval(ratios), name, note)


# On a GPU: kernel time against the profiler's own sum, and graph launches

STEPS = 5
REPLAYED = "reduce-overhead"
KERNELS = Property("kernel / profiler's own sum", "within 5 %", 0.95, 1.05)
GRAPHS = Property(f"{REPLAYED}: one graph launch per decode step", "all", least=STEPS, unit=f"of {STEPS}")


def measure_cuda(bench: Bench, log: Log) -> dict[tuple[str, str], list[float]]:
    """By quantity and mode, none where they are unknown: kernel seconds of a session by ours and by the
    profiler's sum (`kernels`), and graph launches of steps (`graph_launches`).
    """
    if bench.device.type != "cuda":
        raise NotMeasurableError("no CUDA device is used")
    found: dict[tuple[str, str], list[float]] = {}
    for mode in bench.modes:
        log(f"{mode}, profiling")
        found["kernels", mode] = list(kernel_seconds(bench.device, bench.case(mode, 1)) or ())
    if REPLAYED in bench.modes:
        case = bench.case(REPLAYED, 1)
        launches = [profile_step(case.step, case.buffers).graph_launches for _ in range(STEPS)]
        known = [float(count) for count in launches if count is not None]
        found["graph_launches", REPLAYED] = known if len(known) == len(launches) else []
    return found


def kernel_seconds(device: torch.device, case: Case) -> tuple[float, float] | None:
    """Of the same STEPS steps: the sum of durations over the trace's kernels, and that of the profiler's own
    table; None where the kernels of a step are unknown. What separates the steps is a copy, in neither sum.
    """
    session = record_session(device, [(STEP_MARK, case.call)] * STEPS, Separator(device, copies=True))
    steps = read_steps(chrome_events(session), cuda=True)
    sums = [step.kernel_sum_seconds for step in steps if step.kernel_sum_seconds is not None]
    # The table lists copies, fills and marks beside the kernels.
    table = sum(
        event.self_device_time_total
        for event in session.key_averages()
        if event.device_type == DeviceType.CUDA and not event.key.startswith(("Mem", STEP_MARK, LEAD_MARK))
    )
    return (sum(sums), table / 1e6) if sums and len(sums) == len(steps) else None


def judge_cuda(found: Mapping[tuple[str, str], list[float]]) -> Iterator[Row]:
    """Exact: both sums are over the same kernels of the same trace."""
    for mode in (mode for what, mode in found if what == "kernels"):
        if sums := found["kernels", mode]:
            ours, profilers = sums
            yield KERNELS.exactly(ours / profilers, f": {mode}", f"{ours / STEPS * 1e6:.0f} µs per step")
        else:
            reason = "which kernels are a step's is not known: the profiler lost some, or gave them wrong ids"
            yield KERNELS.not_measurable(reason, f": {mode}")
    launches = found.get(("graph_launches", REPLAYED))
    if launches is None:
        yield GRAPHS.not_measurable(f"{REPLAYED} is not served")
    elif not launches:
        yield GRAPHS.not_measurable("the profiler recorded no launch call of a step")
    else:
        seen = [round(count) for count in launches]
        yield GRAPHS.exactly(launches.count(1.0), note=f"launches seen: {seen}")


# Whole requests in this process

BUCKET = 1


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
    """From the job to the sum of its parts, in `mode` at batch 1: what engine and front run for a request,
    without transport, parsing and serialising, which measuring does not change.
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
        timing = self._run(self._full, self._shares.sampling())
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
        return self._run(self._off, nullcontext({}))

    def _run(self, meter: Meter, sampling: AbstractContextManager[dict[Key, SampleCounts]]) -> RequestTiming:
        now_ns = perf_counter_ns()
        job = local_job("request", self._mode, [PROMPT], NEW_TOKENS, ignore_eos=True, sent_ns=now_ns)
        result = JobResult(taken_ns=perf_counter_ns())
        with sampling as found:
            self._generator.run(job, self._steps, result, meter)
        result.prefill.samples = found.get((self._mode, "prefill", BUCKET))
        result.decode.samples = found.get((self._mode, "decode", BUCKET))
        newest = {phase: self._shares.newest(self._mode, phase, BUCKET) for phase in PHASES}
        estimates = self._profiler.estimates(job, result, newest)
        outcome = build_outcome(job, result, None, lambda done_ns: timings(result, estimates, done_ns))
        now_ns = perf_counter_ns()
        return add_up(job, outcome, job.sent_ns, now_ns, now_ns)


INSTRUMENTATION_ROUNDS = 300
REQUESTS = 3
MEASURING = Property("instrumentation full / off, whole request", "≤ 1.01", most=1.01)


def measure_instrumentation(bench: Bench, log: Log) -> dict[str, list[float]]:
    """Seconds per request, `full` and `off` in turns, in the mode whose steps are shortest: medians of a few
    in a row, without what an engine does once a second between requests to count its samples.
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
    Steps, static buffers and text are those of the engine's generation; `around` may wrap the steps.
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
    """Seconds per request by mode, through the `service`'s code and in the `minimal` loop, in turns. Raises
    RuntimeError where the two differ in a text.
    """
    with TemporaryDirectory(prefix="launchbound-") as folder, bench.isolated():
        variants: dict[tuple[str, str], Callable[[], float]] = {}
        for mode in bench.modes:
            log(f"warming {mode}")
            path = RequestPath(bench, mode, Path(folder))
            loop = MinimalLoop(bench, mode)
            served, alone = path.measured().outcome.outputs[0].text, loop.run()
            if served != alone:
                why = f"{mode} gives {served!r} in the engine's loop, {alone!r} in a minimal one"
                raise RuntimeError(why)
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
    """Requests in a minimal loop at batch 1, on `cpus`, whose steps are sampled by this check alone. Raises
    NotMeasurableError where none can be sampled.
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
