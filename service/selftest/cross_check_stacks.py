"""Cross-check of the floor by sampled native stacks: the hollow twin never reads above them.

Stacks are of the real step, so they include what the twin lacks: host code that the step's own kernels have
made cold. The twin is the lower of the two witnesses, and the interval that the service reports spans both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from models.served import NoTwin
from service.measure.cases import Bench, Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.places import PHASES, Place, floors_of
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_dispatch import sampled, stack_sampler
from service.statistics.intervals import median_interval
from service.step.native.stacks import StackSampler

ROUNDS = 16
SAMPLED_SECONDS = 0.04
NAME = "dispatch, twin / stacks"
BOUND = "≤ 1.10"
MOST = 1.10
NO_RATIO = 1e3
"""In place of the ratio of a round in which no sample lay in dispatch: far outside."""


Found = dict[tuple[Place, str], list[float]]
"""Dispatch seconds per round: of the `twin` and of the `stacks`."""


def measure_stacks(variants: Variants, log: Log) -> Found:
    """Both witnesses for every mode, phase and bucket that is served.

    Raises NotMeasurableError on CUDA, without a twin, and where sampling is forbidden.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA kernels are timed by the device")
    with stack_sampler() as sampler:
        try:
            arms = witnesses(variants.served_bench, sampler, log)
            with variants.isolated():
                return by_place(in_rounds(arms, ROUNDS, "stacks", log))
        except NoTwin as error:
            raise NotMeasurableError(str(error)) from error


Arm = Callable[[], dict[Place, float]]


def witnesses(bench: Bench, sampler: StackSampler, log: Log) -> dict[Place | str, Arm]:
    """Per place its sampled dispatch, per mode the floors of its places, all of it built. Raises NoTwin."""
    buckets = bench.settings.batch_sizes
    arms: dict[Place | str, Arm] = {}
    for mode in bench.modes:
        log(f"{mode}, building")
        arms[mode] = partial(floors_of, bench, mode)
        arms[mode]()
        for place in (Place(mode, phase, bucket) for phase in PHASES for bucket in buckets):
            case = bench.case(place.mode, place.bucket, place.phase)
            arms[place] = partial(_sampled, sampler, case, place)
    return arms


def _sampled(sampler: StackSampler, case: Case, place: Place) -> dict[Place, float]:
    return {place: sampled(sampler, case, SAMPLED_SECONDS).dispatch_seconds}


def by_place(seen: Mapping[Place | str, list[dict[Place, float]]]) -> Found:
    """Every place's seconds by both witnesses, paired by round."""
    found: Found = {}
    for place in (key for key in seen if isinstance(key, Place)):
        found[place, "twin"] = [values[place] for values in seen[place.mode]]
        found[place, "stacks"] = [values[place] for values in seen[place]]
    return found


def judge_stacks(found: Mapping[tuple[Place, str], list[float]]) -> list[CheckResult]:
    """Per place: the twin's floor over the dispatch that stacks see, paired by round."""
    places = sorted(dict.fromkeys(place for place, _ in found), key=lambda place: (place.phase, place.bucket))
    return [_row(place, found[place, "twin"], found[place, "stacks"]) for place in places]


def _row(place: Place, twin: list[float], stacks: list[float]) -> CheckResult:
    ratios = [a / b if b > 0 else NO_RATIO for a, b in zip(twin, stacks, strict=True)]
    seen = [median_interval(values) for values in (twin, stacks)]
    reach = min(interval.low for interval in seen), max(interval.high for interval in seen)
    note = (
        f"twin {seen[0].value * 1e6:.0f} µs, stacks {seen[1].value * 1e6:.0f} µs; the interval reaches from"
        f" {reach[0] * 1e6:.0f} to {reach[1] * 1e6:.0f} µs"
    )
    return interval_result(
        f"{NAME}: {place.mode}, {place.phase}, batch {place.bucket}",
        BOUND,
        median_interval(ratios),
        most=MOST,
        note=note,
        numbers={"twin_seconds": twin, "stacks_seconds": stacks},
    )


STACKS = Check(measure_stacks, judge_stacks, ((NAME, BOUND),))
