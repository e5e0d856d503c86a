"""What measuring costs: full instrumentation against none, and the engine's own work between two steps."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import zmq
from torch import Tensor

from models.checkpoint import TINY_FOLDER, build, folder_of
from models.tokenizer import Tokenizer
from service.engine.generation import Generator
from service.engine.inbox import Inbox
from service.engine.job_result import JobResult
from service.engine.local_inbox import local_job
from service.measure.rounds import Say, paired_median_ratio
from service.protocol.modes import MODES
from service.selftest.lab import Case, Lab
from service.selftest.rows import CheckResult, judged
from service.selftest.workload import NEW_TOKENS, PROMPT
from service.statistics.intervals import median_interval
from service.step.buffers import Buffers, allocate
from service.step.callables import Step, build_step
from service.step.meters import Meter, Readings, new_meter

BLOCKS = 80
STEPS_PER_BLOCK = 8
MOST_SHARE = 1.01
MOST_OWN_SECONDS = 30e-6
JOBS = 30


def full_against_off(lab: Lab, say: Say) -> list[CheckResult]:
    """Step time with full instrumentation over that without, in the mode whose steps are shortest.

    The two take turns step by step, so that whatever disturbs the machine meets both.
    """
    mode = lab.modes[-1]
    case = lab.case(mode)
    meters: list[Meter] = [new_meter(lab.device, 1, "full"), new_meter(lab.device, 1, "off")]
    blocks: tuple[list[float], list[float]] = [], []
    with lab.settled():
        for number in range(BLOCKS):
            say(f"block {number + 1} of {BLOCKS}")
            block: tuple[list[float], list[float]] = [], []
            for turn in range(2 * STEPS_PER_BLOCK + 2):
                which = (turn + number) % 2
                seconds = _step_seconds(meters[which], case)
                if turn >= 2:
                    block[which].append(seconds)
            for which in (0, 1):
                blocks[which].append(median(block[which]))
    ratio = paired_median_ratio(blocks[0], blocks[1])
    note = f"{mode}, steps of {median(blocks[1]) * 1e6:.0f} µs"
    return [
        judged(
            "instrumentation full / off, step time",
            "≤ 1.01",
            ratio,
            most=MOST_SHARE,
            note=note,
            numbers={"full_seconds": blocks[0], "off_seconds": blocks[1]},
        )
    ]


def _step_seconds(meter: Meter, case: Case) -> float:
    readings = Readings()
    began = perf_counter_ns()
    _, greedy = meter.run(case.step, case.buffers, case.buffers.token, readings)
    meter.fetch(greedy, readings)
    return (perf_counter_ns() - began) / 1e9


class NotingMeter:
    """Another meter that also notes when each call began and ended, in nanoseconds."""

    def __init__(self, inner: Meter) -> None:
        self._inner = inner
        self.calls: list[tuple[int, int]] = []

    def run(self, step: Step, buffers: Buffers, tokens: Tensor, readings: Readings) -> tuple[Tensor, Tensor]:
        """As the inner meter does, with its own clock around it."""
        began = perf_counter_ns()
        result = self._inner.run(step, buffers, tokens, readings)
        self.calls.append((began, perf_counter_ns()))
        return result

    def fetch(self, tokens: Tensor, readings: Readings) -> list[int]:
        """As the inner meter does."""
        return self._inner.fetch(tokens, readings)

    def gaps_seconds(self, run: JobResult) -> float:
        """Median time between two calls, less what was waited for the device.

        Of means over two in a row, because the engine looks for cancellations between every other two.
        """
        between = [after[0] - before[1] for before, after in zip(self.calls, self.calls[1:], strict=False)]
        waited = [*run.prefill.wait, *run.decode.wait][: len(between)] or [0] * len(between)
        own = [gap - wait for gap, wait in zip(between, waited, strict=True)]
        return median((one + next_one) / 2 for one, next_one in pairwise(own)) / 1e9


def own_work(lab: Lab, say: Say) -> list[CheckResult]:
    """What the engine does between two calls: buffers, checks, meters, tokens; with its real inbox."""
    settings, mode = lab.settings, "inference_mode"
    model = build(settings.model, 1, lab.device, lab.precision.weights)
    model.rotary = model.rotary.to(lab.precision.cache)
    buffers = allocate(model, [1], settings.prefill_chunk, lab.precision.cache)
    step = build_step(MODES[mode], model, precision=lab.precision)
    tokenizer = Tokenizer.load(folder_of(settings.model) or TINY_FOLDER, model.config.vocabulary)
    found: list[float] = []
    with tempfile.TemporaryDirectory(prefix="launchbound-") as folder, zmq.Context() as context:
        address = f"ipc://{Path(folder) / 'border.sock'}"
        front = context.socket(zmq.PAIR)
        front.bind(address)
        inbox = Inbox(address)
        generator = Generator(tokenizer, buffers, model.config.context, inbox)
        with lab.settled():
            for number in range(JOBS):
                say(f"job {number + 1} of {JOBS}")
                meter, run = NotingMeter(new_meter(lab.device, 1, "full")), JobResult()
                job = local_job(f"own-{number}", mode, [PROMPT], NEW_TOKENS, ignore_eos=True)
                generator.run(job, {("prefill", 1): step, ("decode", 1): step}, run, meter)
                found.append(meter.gaps_seconds(run))
        inbox.close()
        front.close(linger=0)
    own = median_interval(found[2:])
    micro = {name: getattr(own, name) * 1e6 for name in ("value", "low", "high")}
    return [
        judged(
            "engine's own work per decode step",
            "≤ 30 µs",
            own,
            most=MOST_OWN_SECONDS,
            unit="s",
            note=f"{micro['value']:.1f} µs [{micro['low']:.1f}, {micro['high']:.1f}], {mode}, batch 1",
            numbers={"seconds": found},
        )
    ]
