"""Check of what the split by sampled stacks rests on first: the functions that steps are in have names.

A sample in a function without one counts as host, whatever it is. On a processor for which a library takes
code of its own, that code may carry no names that we read, and a product's time would be dispatch: rows with
injected work, at batch 1, need not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from service.measure.cases import Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.places import PHASES, Place
from service.selftest.results import CheckResult, interval_result, share_interval
from service.selftest.sampled_dispatch import sampled, stack_sampler
from service.step.native.stacks import StackSampler

ROUNDS = 8
SAMPLED_SECONDS = 0.08
MOST = 0.02
NAME = "samples in functions without a name"
BOUND = f"≤ {MOST:.0%} of any step"

Counts = tuple[int, int]
"""Samples without a name, and all of a step."""


def measure_names(variants: Variants, log: Log) -> dict[Place, list[Counts]]:
    """Of every mode's steps, in both phases at every bucket, by round.

    Raises NotMeasurableError on CUDA, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured")
    bench = variants.served_bench
    with stack_sampler() as sampler, variants.isolated():
        arms: dict[Place, Callable[[], Counts]] = {}
        for mode in bench.modes:
            log(f"{mode}, building")
            for place in (
                Place(mode, phase, size) for phase in PHASES for size in bench.settings.batch_sizes
            ):
                arms[place] = partial(_counts, sampler, bench.case(mode, place.bucket, place.phase))
        return in_rounds(arms, ROUNDS, "names", log)


def _counts(sampler: StackSampler, case: Case) -> Counts:
    found = sampled(sampler, case, SAMPLED_SECONDS)
    return found.unnamed, found.samples


def judge_names(found: Mapping[Place, list[Counts]]) -> list[CheckResult]:
    """Per mode, the step with the largest share."""
    rows = []
    for mode in dict.fromkeys(place.mode for place in found):
        sums = {place: tuple(map(sum, zip(*seen, strict=True))) for place, seen in found.items()}
        shares = {place: share_interval(*sums[place]) for place in found if place.mode == mode}
        place, worst = max(shares.items(), key=lambda one: one[1].high)
        rows.append(
            interval_result(
                f"{NAME}: {mode}",
                BOUND,
                worst,
                most=MOST,
                unit="share",
                note=f"{place.phase}, batch {place.bucket}: {sums[place][0]} of {sums[place][1]}",
                numbers={
                    "unnamed": [sums[one][0] for one in shares],
                    "samples": [sums[one][1] for one in shares],
                },
            )
        )
    return rows


NAMES = Check(measure_names, judge_names, ((NAME, BOUND),))
