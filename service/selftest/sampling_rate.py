"""Check that the split does not depend on how often steps are sampled.

A sample is an interrupt, behind which the interrupted code runs slower for a while. If that slows the host
more than kernels, or less, the shares of samples are not those of unsampled steps, and fewer samples show it:
but for what these still do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from statistics import fmean, median
from typing import NamedTuple

from service.measure.cases import Case
from service.measure.rounds import Log, in_rounds, paired_median_ratio
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.places import Place
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_dispatch import sampled, stack_sampler
from service.step.native.perf_events import SAMPLES_PER_SECOND
from service.step.native.stacks import StackSampler

ROUNDS = 24
MODES = ("eager", "compiled")
FEWER = 999
"""Samples per second: a fifth of SAMPLES_PER_SECOND, and not in step with what happens every millisecond."""

SAMPLED_SECONDS = {SAMPLES_PER_SECOND: 0.12, FEWER: 0.5}
SHARE = 0.10
NAME = "sampled a fifth as often"
BOUND = f"the same ± {SHARE:.0%}"


class Seen(NamedTuple):
    """Dispatch's share of the samples, and how many times as long as the others the sampled steps were."""

    dispatch_share: float
    slowed: float


Key = tuple[Place, int]
"""A step, and the samples per second."""


def measure_rates(variants: Variants, log: Log) -> dict[Key, list[Seen]]:
    """Of decode steps at the smallest and the largest bucket, by round, at both rates.

    Raises NotMeasurableError on CUDA, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured")
    bench = variants.served_bench
    sizes = dict.fromkeys((min(bench.settings.batch_sizes), max(bench.settings.batch_sizes)))
    with stack_sampler() as often, stack_sampler(FEWER) as seldom, variants.isolated():
        samplers = {SAMPLES_PER_SECOND: often, FEWER: seldom}
        arms: dict[Key, Callable[[], Seen]] = {}
        for mode in (mode for mode in MODES if mode in bench.modes):
            log(f"{mode}, building")
            for place in (Place(mode, "decode", size) for size in sizes):
                case = bench.case(mode, place.bucket, place.phase)
                arms |= {(place, rate): partial(_seen, samplers[rate], case, rate) for rate in samplers}
        return in_rounds(arms, ROUNDS, "rates", log)


def _seen(sampler: StackSampler, case: Case, rate: int) -> Seen:
    found = sampled(sampler, case, SAMPLED_SECONDS[rate])
    return Seen(1 - found.kernel_share, fmean(found.sampled_seconds) / found.step_seconds)


def judge_rates(found: Mapping[Key, list[Seen]]) -> list[CheckResult]:
    """Per step, the share of either part at the lower rate over that at the usual one."""
    rows = []
    for place in dict.fromkeys(place for place, _ in found):
        seldom, often = found[place, FEWER], found[place, SAMPLES_PER_SECOND]
        slowed = " and ".join(f"{median(seen.slowed for seen in rate):.2f}" for rate in (seldom, often))
        note = f"steps take {slowed} times as long at {FEWER:,} and {SAMPLES_PER_SECOND:,} samples per second"
        dispatch = [[seen.dispatch_share for seen in rate] for rate in (seldom, often)]
        kernel = [[1 - share for share in rate] for rate in dispatch]
        for part, (fewer, usual) in (("dispatch", dispatch), ("kernel", kernel)):
            rows.append(
                interval_result(
                    f"{NAME}: {part}, {place.mode}, {place.phase}, batch {place.bucket}",
                    BOUND,
                    paired_median_ratio(fewer, usual),
                    least=1 - SHARE,
                    most=1 + SHARE,
                    unit="ratio",
                    note=note,
                    numbers={"shares": usual, "shares_of_fewer": fewer},
                )
            )
    return rows


SAMPLING_RATE = Check(measure_rates, judge_rates, ((NAME, BOUND),))
