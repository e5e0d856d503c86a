"""Check of what is booked as kernel: modes that run the same kernels must show the same kernel time.

Eager, no_grad and inference_mode differ in what the host does around each operator, and in the memory that a
tape holds on to. Where such a price is booked as kernel, their kernel times differ.

They also differ where nothing is booked wrongly: the longer a step, the longer the machine's other users had
the shared caches when the next one begins, and the longer its kernels take. So after each step of a mode
that is faster than eager the thread is busy for the time that it was faster by, neither timed nor sampled:
all modes begin equally many steps per second (docs/decisions/selftest.md).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from statistics import median
from time import perf_counter

from service.measure.cases import Bench, Case
from service.measure.cpu_sampler import SAMPLES_PER_SECOND, CpuSampler, SampledSteps
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_steps import PHASES, ServedStep, sampled, sampler_of
from service.statistics.intervals import median_interval

ROUNDS = 16
KERNEL_SAMPLES = 240
"""Wanted per step and round: its kernel time is then known within 6 %, the median of the rounds' ratios
within 5 at 95 %. The smaller the kernels' share, the longer it is sampled."""

FIRST_SECONDS, MOST_SECONDS = 0.2, 1.2
"""Of steps that are sampled: to learn the share of kernels, and at most, however small that is."""

STEPS = 3
PLAIN = ("eager", "no_grad", "inference_mode")
NAME = "kernel time equal in the plain modes"
BOUND = "within 10 %"
APART = 0.10
NO_RATIO = 1e3
"""In place of the ratio of a round in which a mode shows no kernel time at all: far outside."""

Found = dict[ServedStep, list[SampledSteps]]
"""By round."""


def measure_plain(variants: Variants, log: Log) -> Found:
    """Per mode, phase and bucket. Raises NotMeasurableError as `sampler_of`, and without two of the modes."""
    sampler = sampler_of(variants)
    bench, modes = variants.served_bench, plain_modes(variants)
    with variants.isolated():
        return by_round(bench, modes, sampler, log)


def plain_modes(variants: Variants) -> list[str]:
    """Those of PLAIN that are served. Raises NotMeasurableError where there are no two, or no eager."""
    modes = [mode for mode in PLAIN if mode in variants.modes]
    if PLAIN[0] not in modes or len(modes) < 2:
        raise NotMeasurableError(f"it compares with {PLAIN[0]}, and at least two of its modes must be served")
    return modes


def by_round(bench: Bench, modes: Sequence[str], sampler: CpuSampler, log: Log) -> Found:
    """The modes of a phase and bucket follow right after each other, because what neighbours leave of the
    caches changes within seconds.
    """
    together: dict[tuple[Phase, int], dict[ServedStep, Case]] = defaultdict(dict)
    for mode in modes:
        for phase in PHASES:
            for bucket in bench.settings.batch_sizes:
                together[phase, bucket][ServedStep(mode, phase, bucket)] = bench.case(mode, bucket, phase)
    order = Random("plain-kernels")
    log("how long to sample")
    seconds = {
        step: _seconds_for(sampled(sampler, case, FIRST_SECONDS, _rest(cases, step)).kernel_share)
        for cases in together.values()
        for step, case in cases.items()
    }

    def visit(cases: Mapping[ServedStep, Case]) -> dict[ServedStep, SampledSteps]:
        turns = list(cases)
        order.shuffle(turns)
        return {step: sampled(sampler, cases[step], seconds[step], _rest(cases, step)) for step in turns}

    arms = {key: partial(visit, cases) for key, cases in together.items()}
    found = in_rounds(arms, ROUNDS, "plain-kernels", log)
    return {step: [seen[step] for seen in found[key]] for key, cases in together.items() for step in cases}


def _seconds_for(kernel_share: float) -> float:
    return min(MOST_SECONDS, KERNEL_SAMPLES / SAMPLES_PER_SECOND / max(kernel_share, 1e-3))


def _rest(cases: Mapping[ServedStep, Case], step: ServedStep) -> Callable[[], object] | None:
    """What follows each call of `step`: as much time as eager's takes longer, at this moment."""
    case, eager = cases[step], cases[step._replace(mode=PLAIN[0])]
    if case is eager:
        return None
    return partial(busy_for, eager.steady_seconds(STEPS) - case.steady_seconds(STEPS))


def busy_for(seconds: float) -> None:
    """Keep the core, and touch no memory, for `seconds`; not at all where they are negative."""
    until = perf_counter() + seconds
    while perf_counter() < until:
        continue


def judge_plain(found: Mapping[ServedStep, list[SampledSteps]]) -> list[CheckResult]:
    """Per phase and bucket, the other modes' kernel time over eager's, paired by round."""
    ordered = sorted(found, key=lambda step: (step.phase, step.bucket))
    return [
        _row(step, found[step], found[step._replace(mode=PLAIN[0])])
        for step in ordered
        if step.mode != PLAIN[0]
    ]


def _row(step: ServedStep, own: list[SampledSteps], eager: list[SampledSteps]) -> CheckResult:
    seconds, eagers = ([seen.kernel_seconds for seen in rounds] for rounds in (own, eager))
    ratios = [a / b if a > 0 and b > 0 else NO_RATIO for a, b in zip(seconds, eagers, strict=True)]
    return interval_result(
        f"{NAME}: {step.mode} / {PLAIN[0]}, {step.phase}, batch {step.bucket}",
        BOUND,
        median_interval(ratios),
        least=1 - APART,
        most=1 + APART,
        note=f"{median(seconds) * 1e6:.0f} µs against {median(eagers) * 1e6:.0f} µs",
        numbers={"kernel_seconds": seconds, "eager_kernel_seconds": eagers},
    )


PLAIN_KERNELS = Check(measure_plain, judge_plain, ((NAME, BOUND),))
