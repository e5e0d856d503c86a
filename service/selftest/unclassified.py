"""Check that the rules know the code that steps are in: a sample in any other is on neither side.

On a processor for which a library takes code of its own, that code may have names that no rule knows, or
none at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

from service.measure.cases import Case
from service.measure.cpu_sampler import CpuSampler, Place
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.protocol.splits import Side
from service.selftest.check import Check
from service.selftest.results import CheckResult, interval_result, share_interval
from service.selftest.sampled_steps import PHASES, ServedStep, sampler_of

ROUNDS = 5
SAMPLED_SECONDS = 0.25
MOST = 0.02
NAME = "samples in code of no class"
BOUND = f"≤ {MOST:.0%} of any step"
SHOWN = 3
"""Functions that a note names."""

Found = dict[ServedStep, list[Counter[Place]]]
"""How many samples were where, by round."""


def measure_unclassified(variants: Variants, log: Log) -> Found:
    """Of every mode's steps, in both phases at every bucket. Raises NotMeasurableError as `sampler_of`."""
    sampler = sampler_of(variants)
    bench = variants.served_bench
    arms: dict[ServedStep, Callable[[], Counter[Place]]] = {}
    for mode in bench.modes:
        log(f"{mode}, building")
        for phase in PHASES:
            for size in bench.settings.batch_sizes:
                case = bench.case(mode, size, phase)
                arms[ServedStep(mode, phase, size)] = partial(_places, sampler, case)
    with variants.isolated():
        return in_rounds(arms, ROUNDS, "unclassified", log)


def _places(sampler: CpuSampler, case: Case) -> Counter[Place]:
    case.steady_seconds(1)
    until = perf_counter() + SAMPLED_SECONDS
    with sampler.recording() as recorded:
        while perf_counter() < until:
            case.call()
    return Counter(recorded.places)


def judge_unclassified(found: Mapping[ServedStep, list[Counter[Place]]]) -> list[CheckResult]:
    """Per mode, the step with the largest share."""
    return [
        _row(mode, {step: sum(seen, Counter()) for step, seen in found.items() if step.mode == mode})
        for mode in dict.fromkeys(step.mode for step in found)
    ]


def _row(mode: str, steps: Mapping[ServedStep, Counter[Place]]) -> CheckResult:
    within = {step: _but(seen, "system") for step, seen in steps.items()}
    unknown = {step: seen - _but(seen, "unclassified") for step, seen in within.items()}
    shares = {step: share_interval(unknown[step].total(), seen.total()) for step, seen in within.items()}
    step, worst = max(shares.items(), key=lambda one: one[1].high)
    where = "".join(f", {place.symbol} ({n})" for place, n in unknown[step].most_common(SHOWN))
    return interval_result(
        f"{NAME}: {mode}",
        BOUND,
        worst,
        most=MOST,
        unit="share",
        note=f"{step.phase}, batch {step.bucket}: {unknown[step].total()} of {worst.samples}{where}",
        numbers={
            "unclassified": [found.total() for found in unknown.values()],
            "samples": [found.total() for found in within.values()],
        },
    )


def _but(seen: Counter[Place], side: Side) -> Counter[Place]:
    return Counter({place: n for place, n in seen.items() if place.side != side})


UNCLASSIFIED = Check(measure_unclassified, judge_unclassified, ((NAME, BOUND),))
