"""Checks of what sampling does: to the shares at the usual rate, to the steps in the background.

A sample is an interrupt, behind which the interrupted code runs slower for a while. If that slows the host
more than kernels, or less, the shares of samples are not those of unsampled steps, and the fewer samples, the
nearer they come to these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean, median
from time import thread_time_ns
from typing import NamedTuple

from service.engine.step_shares import BACKGROUND_PER_SECOND
from service.measure.cases import Case
from service.measure.cpu_sampler import IN_STEP, SAMPLES_PER_SECOND, CpuSampler
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.protocol.splits import SampleCounts
from service.selftest.check import Check
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_steps import ServedStep, sampled, sampler_of
from service.statistics.intervals import mean_interval
from service.statistics.sampled_share import RATE

ROUNDS = 24
MODES = ("eager", "compiled")
RATES = (251, 499, SAMPLES_PER_SECOND, 1999)
"""Samples per second: primes, so that none keeps step with what happens every millisecond."""

SAMPLED_SECONDS = 0.4
"""Per round and rate: all rounds together tell a shift of one point of a share."""

NAME = f"kernel share at {SAMPLES_PER_SECOND} samples per second less that at none"
BOUND = f"± {RATE}"


class Seen(NamedTuple):
    """Samples of a step, and how many times as long as the others the sampled steps were."""

    counts: SampleCounts
    slowed: float

    @property
    def kernel_share(self) -> float:
        """Kernel / (kernel + host)."""
        return self.counts.kernel / (self.counts.kernel + self.counts.host)


Key = tuple[ServedStep, int]
"""A step, and the samples per second."""


def measure_rates(variants: Variants, log: Log) -> dict[Key, list[Seen]]:
    """Of decode steps at the smallest and the largest bucket, by round, at each rate.

    Raises NotMeasurableError as `sampler_of`.
    """
    sampler = sampler_of(variants)
    bench = variants.served_bench
    sizes = dict.fromkeys((min(bench.settings.batch_sizes), max(bench.settings.batch_sizes)))
    arms: dict[Key, Callable[[], Seen]] = {}
    for mode in (mode for mode in MODES if mode in bench.modes):
        log(f"{mode}, building")
        for size in sizes:
            case = bench.case(mode, size, "decode")
            arms |= {
                (ServedStep(mode, "decode", size), rate): partial(_seen, sampler, case, rate)
                for rate in RATES
            }
    with variants.isolated():
        return in_rounds(arms, ROUNDS, "rates", log)


def _seen(sampler: CpuSampler, case: Case, rate: int) -> Seen:
    found = sampled(sampler, case, SAMPLED_SECONDS, samples_per_second=rate)
    return Seen(found.counts, fmean(found.sampled_seconds) / found.step_seconds)


def judge_rates(found: Mapping[Key, list[Seen]]) -> list[CheckResult]:
    """Per step, how far its share at the usual rate is from the end of the line through all rates."""
    return [_rate_row(step, found) for step in dict.fromkeys(step for step, _ in found)]


def _rate_row(step: ServedStep, found: Mapping[Key, list[Seen]]) -> CheckResult:
    shares = {rate: [seen.kernel_share for seen in found[step, rate]] for rate in RATES}
    shifts = [beyond_none(dict(zip(RATES, one, strict=True))) for one in zip(*shares.values(), strict=True)]
    shown = ", ".join(f"{fmean(values):.3f}" for values in shares.values())
    slowed = ", ".join(f"{median(seen.slowed for seen in found[step, rate]):.2f}" for rate in RATES)
    return interval_result(
        f"{NAME}: {step}",
        BOUND,
        mean_interval(shifts),
        least=-RATE,
        most=RATE,
        unit="share",
        note=f"{shown} at {', '.join(f'{rate:,}' for rate in RATES)}; steps take {slowed} times as long",
        numbers={f"shares_at_{rate}": values for rate, values in shares.items()},
    )


def beyond_none(shares: Mapping[int, float]) -> float:
    """The share at SAMPLES_PER_SECOND less that at no sample a second, by a line through all `shares`.

    A share counts as much as it has samples: by its rate, as each is sampled for as long.
    """
    total = sum(shares)
    centre = sum(rate * rate for rate in shares) / total
    mean = sum(rate * share for rate, share in shares.items()) / total
    slope = sum(rate * (rate - centre) * (share - mean) for rate, share in shares.items()) / sum(
        rate * (rate - centre) ** 2 for rate in shares
    )
    return shares[SAMPLES_PER_SECOND] - (mean - slope * centre)


SAMPLING_RATE = Check(measure_rates, judge_rates, ((NAME, BOUND),))


BLOCKS = 900
BLOCK_SECONDS = 0.05
MOST_RATIO = 1.01
COST = "steps sampled in the background / unsampled"
COST_BOUND = f"≤ {MOST_RATIO}"

Arm = tuple[str, str]
"""Mode, and `sampled` or `unsampled`."""


def measure_background(variants: Variants, log: Log) -> dict[Arm, list[float]]:
    """CPU seconds per decode step at batch 1, in blocks that take turns. Raises NotMeasurableError as
    `sampler_of`.
    """
    sampler = sampler_of(variants)
    arms: dict[Arm, Callable[[], float]] = {}
    for mode in (mode for mode in MODES if mode in variants.modes):
        log(f"{mode}, building")
        case = variants.case(mode)
        arms[mode, "sampled"] = partial(_sampled_seconds, sampler, case)
        arms[mode, "unsampled"] = partial(_block_seconds, case)
    with variants.isolated():
        return in_rounds(arms, BLOCKS, "background", log)


def _sampled_seconds(sampler: CpuSampler, case: Case) -> float:
    sampler.label.value = IN_STEP
    sampler.start(BACKGROUND_PER_SECOND)
    try:
        return _block_seconds(case)
    finally:
        sampler.stop()
        sampler.label.value = 0
        sampler.take()


def _block_seconds(case: Case) -> float:
    """The mean step, because few of them have a sample."""
    arguments = case.arguments
    steps, began = 0, thread_time_ns()
    while (taken := thread_time_ns() - began) < BLOCK_SECONDS * 1e9 or not steps:
        case.step(*arguments)
        steps += 1
    return taken / steps / 1e9


def judge_background(found: Mapping[Arm, list[float]]) -> list[CheckResult]:
    """Per mode, paired by round."""
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        on, off = found[mode, "sampled"], found[mode, "unsampled"]
        rows.append(
            interval_result(
                f"{COST}: {mode}, decode, batch 1",
                COST_BOUND,
                paired_median_ratio(on, off),
                most=MOST_RATIO,
                note=f"{BACKGROUND_PER_SECOND} samples per second of steps of {median(off) * 1e6:.0f} µs",
                numbers={"sampled_seconds": on, "unsampled_seconds": off},
            )
        )
    return rows


BACKGROUND = Check(measure_background, judge_background, ((COST, COST_BOUND),))
