"""Check that a step does the work that is asked: neither an empty cache is read nor much padding computed.

Requests run through the engine's own code, which decides what a step is called with. Were a decode step to
read all of its cache, a longer context would lengthen it; were prompts padded to whole chunks, half a chunk
would take as long as a whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import NamedTuple

import msgspec

from models.opening import open_tokenizer
from service.engine.generation import Generator
from service.engine.job_result import JobResult
from service.engine.local_inbox import LocalInbox, local_job
from service.measure.cases import Bench
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result, not_measurable
from service.step.callables import Step
from service.step.meters import new_meter

ROUNDS = 24
SHORTER = 4
"""The longer context over the shorter one."""

LEAST_CHUNK = 16
LEAST_BATCH = 16
"""Of a prefill that is hardly anything but its tokens."""

CONTEXTS, DECODE_BOUND, MOST_OF_DECODE = "decode in a longer context / in a shorter one", "≤ 1.1", 1.1
PROMPTS, PREFILL_BOUND, MOST_OF_PREFILL = "prefill of half a chunk / of a whole one", "≤ 0.65", 0.65


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
    served = msgspec.structs.replace(variants.settings, batch_sizes=[batch], context=None)
    log("building")
    long = _Requests(Bench(served))
    shorter = long.context // SHORTER
    if chunk < LEAST_CHUNK or shorter < 2 * chunk:
        raise NotMeasurableError(
            f"it needs a prefill chunk of {LEAST_CHUNK} tokens at least, and a context of eight chunks"
        )
    short = _Requests(Bench(msgspec.structs.replace(served, context=shorter)))
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
        return in_rounds(arms, ROUNDS, "asked", log)


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
        phases: tuple[Phase, ...] = ("prefill", "decode")
        self._steps[mode] = {
            (phase, self._batch): self._bench.case(mode, self._batch, phase).step for phase in phases
        }
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


def judge_asked(found: Mapping[Arm, list[float]]) -> list[CheckResult]:
    """Two rows per mode, paired by round."""
    rows = []
    for mode in dict.fromkeys(arm.mode for arm in found):
        shorter, longer = sorted(arm for arm in found if arm.mode == mode and arm.phase == "decode")
        half, whole = sorted(arm for arm in found if arm.mode == mode and arm.phase == "prefill")
        rows.append(_row(CONTEXTS, DECODE_BOUND, found, (longer, shorter), MOST_OF_DECODE))
        if half.batch >= LEAST_BATCH:
            rows.append(_row(PROMPTS, PREFILL_BOUND, found, (half, whole), MOST_OF_PREFILL))
        else:
            name, few = _name(PROMPTS, half), f"a prefill at batch {half.batch} is more than its tokens"
            rows.append(not_measurable(name, PREFILL_BOUND, f"{few}: serve one of {LEAST_BATCH} or more"))
    return rows


def _row(
    name: str, bound: str, found: Mapping[Arm, list[float]], arms: tuple[Arm, Arm], most: float
) -> CheckResult:
    above, below = (found[arm] for arm in arms)
    sizes = " and ".join(str(arm.size) for arm in arms)
    return interval_result(
        _name(name, arms[0]),
        bound,
        paired_median_ratio(above, below),
        most=most,
        note=f"{sizes}: {median(above) * 1e3:.2f} and {median(below) * 1e3:.2f} ms",
        numbers={"above_seconds": above, "below_seconds": below},
    )


def _name(name: str, arm: Arm) -> str:
    return f"{name}, {arm.mode}, batch {arm.batch}"


ASKED_WORK = Check(measure_asked, judge_asked, ((CONTEXTS, DECODE_BOUND), (PROMPTS, PREFILL_BOUND)))
