"""The engine's own time, measured in process without a front: between two steps, and around them."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Thread
from time import perf_counter_ns

import msgspec
import torch
import zmq
from torch import Tensor

from models.opening import open_tokenizer
from service.engine.generation import Generator
from service.engine.inbox import Inbox
from service.engine.job_result import JobResult
from service.engine.local_inbox import local_job
from service.engine.loop import Engine
from service.measure.cases import Bench
from service.measure.rounds import Log
from service.measure.variants import Variants
from service.protocol.messages import Job, Outcome, Stop, ToFront
from service.protocol.modes import MODES
from service.protocol.status import EngineStatus
from service.selftest.checks import NEW_TOKENS, PROMPT
from service.selftest.results import CheckResult, interval_result
from service.statistics.intervals import median_interval
from service.step.buffers import Arguments
from service.step.callables import Step, build_step
from service.step.meters import Meter, Readings, new_meter

UNCOUNTED = 2
"""First jobs, or jobs per mode, that are run and not counted."""

OWN_WORK_JOBS = 30
OWN_WORK_MODE = "inference_mode"
MOST_OWN_SECONDS = 30e-6
OVERHEAD_JOBS = 20


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

    def gaps_seconds(self, run: JobResult) -> float:
        """Median time between two calls, less the wait for the device.

        Of means over two in a row, because the engine looks for cancellations between every other two.
        """
        between = [after[0] - before[1] for before, after in pairwise(self.calls)]
        waited = [*run.prefill.wait, *run.decode.wait][: len(between)] or [0] * len(between)
        own = [gap - wait for gap, wait in zip(between, waited, strict=True)]
        return median((one + next_one) / 2 for one, next_one in pairwise(own)) / 1e9


@contextmanager
def _front_socket() -> Iterator[tuple[str, zmq.Socket[bytes]]]:
    """The front's end of the engine's socket, with its address."""
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder, zmq.Context() as context:
        address = f"ipc://{Path(folder) / 'engine.sock'}"
        socket = context.socket(zmq.PAIR)
        socket.bind(address)
        try:
            yield address, socket
        finally:
            socket.close(linger=0)


def own_work(variants: Variants, log: Log) -> list[CheckResult]:
    """The engine's time between two calls: buffers, checks, meters, tokens; with its real inbox."""
    bench = Bench(msgspec.structs.replace(variants.settings, batch_sizes=[1], context=None))
    config = bench.model.config
    step = build_step(MODES[OWN_WORK_MODE], bench.model, precision=bench.precision)
    tokenizer = open_tokenizer(bench.settings.model, config.vocabulary)
    found: list[float] = []
    with _front_socket() as (address, _):
        inbox = Inbox(address)
        generator = Generator(tokenizer, bench.buffers, config.context, inbox)
        with variants.isolated():
            for number in range(OWN_WORK_JOBS):
                log(f"job {number + 1} of {OWN_WORK_JOBS}")
                meter = TimestampingMeter(new_meter(bench.device, 1, "full"))
                run = JobResult()
                job = local_job(f"own-{number}", OWN_WORK_MODE, [PROMPT], NEW_TOKENS, ignore_eos=True)
                generator.run(job, {("prefill", 1): step, ("decode", 1): step}, run, meter)
                found.append(meter.gaps_seconds(run))
        inbox.close()
    own = median_interval(found[UNCOUNTED:])
    value, low, high = (seconds * 1e6 for seconds in (own.value, own.low, own.high))
    return [
        interval_result(
            "engine's own work per decode step",
            "≤ 30 µs",
            own,
            most=MOST_OWN_SECONDS,
            unit="s",
            note=f"{value:.1f} µs [{low:.1f}, {high:.1f}], {OWN_WORK_MODE}, batch 1",
            numbers={"seconds": found},
        )
    ]


def overhead_seconds(variants: Variants, log: Log) -> dict[str, float]:
    """Median seconds by mode between a job's arrival and its end that are neither steps nor tokenising.

    The engine runs here, with its real inbox; a thread at the other end sends one job after another.
    """
    settings = msgspec.structs.replace(
        variants.settings, batch_sizes=[1], profile_every=0, instrumentation="full"
    )
    jobs = [
        local_job(f"overhead-{number}-{mode}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
        for number in range(OVERHEAD_JOBS)
        for mode in variants.modes
    ]
    outcomes: list[Outcome] = []
    with _front_socket() as (address, front):
        thread = Thread(target=_send_jobs, args=(front, jobs, outcomes, log))
        inbox = Inbox(address)
        thread.start()
        try:
            with variants.isolated():
                Engine(settings, inbox).run()
        finally:
            torch.compiler.set_stance("default")
            inbox.close()
            thread.join()
    found: dict[str, list[float]] = defaultdict(list)
    for outcome in outcomes[UNCOUNTED * len(variants.modes) :]:
        found[outcome.mode].append(_overhead(outcome))
    return {mode: median(values) for mode, values in found.items()}


def _send_jobs(front: zmq.Socket[bytes], jobs: list[Job], outcomes: list[Outcome], log: Log) -> None:
    """Wait until the engine is warm, send each job once the one before it is done, then `Stop`."""
    decode = msgspec.msgpack.Decoder(ToFront).decode
    encode = msgspec.msgpack.Encoder().encode
    waiting = list(jobs)
    while len(outcomes) < len(jobs):
        message = decode(front.recv())
        log(f"an engine without a front, job {len(outcomes)} of {len(jobs)}")
        if isinstance(message, Outcome):
            outcomes.append(message)
        if (isinstance(message, EngineStatus) and message.warm) or (isinstance(message, Outcome) and waiting):
            front.send(encode(msgspec.structs.replace(waiting.pop(0), sent_ns=perf_counter_ns())))
    front.send(encode(Stop()))


def _overhead(outcome: Outcome) -> float:
    timings = outcome.timings
    if timings is None:
        raise RuntimeError(f"job {outcome.id} did not run: {outcome.problem}")
    walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
    return (timings.done_ns - timings.taken_ns) / 1e9 - walls - timings.tokenise_seconds
