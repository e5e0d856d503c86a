"""Cross-check of the floor by regression: a real decode step's time, extrapolated over widths to no work.

The family is the served model at a quarter, half, three quarters and the whole of every width, with the same
layers, heads and context. Decode at batch 1 reads every weight once and does two operations with it, so its
work and its bytes are one regressor up to a constant; bytes are taken, because memory is what it waits for,
and with them the part of the static cache that attention reads.

Where the host issues operator by operator, the narrower models read, off the clock, what the served model's
modules have more: its host code is then as cold at every width, and what grows with the width is work alone.
Without it the cost of cold host code would count as work, which sampled native stacks contradict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from models.config import Config
from service.measure.cases import Case
from service.measure.rounds import Log, in_rounds
from service.measure.variants import Variants
from service.selftest.check import Check, NotMeasurableError
from service.selftest.results import CheckResult, interval_result
from service.selftest.sampled_dispatch import sampled, stack_sampler
from service.selftest.width_family import bytes_read, curvature, family, intercept
from service.statistics.intervals import median_interval
from service.step.native.stacks import StackSampler

ROUNDS = 25
SAMPLED_SECONDS = 0.04
NAME = "intercept over four widths / nearest witness"
BOUND = "within 25 %"
LEAST = 0.75
MOST = 1.25

Witness = Literal["twin", "stacks"]
WITNESSES: tuple[Witness, ...] = ("twin", "stacks")


Arm = tuple[str, float | Witness]
"""A mode, and the bytes that its step reads, or by which witness its dispatch is known."""


def measure_intercept(variants: Variants, log: Log) -> dict[Arm, list[float]]:
    """Seconds of real decode steps of four widths, and dispatch of the widest by both witnesses.

    Without the stacks where sampling is forbidden. Raises NotMeasurableError on CUDA, and where the widths
    cannot be quartered.
    """
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured by itself")
    try:
        configs = family(variants.config)
    except ValueError as error:
        raise NotMeasurableError(str(error)) from error
    try:
        with stack_sampler() as sampler:
            return _measure_modes(variants, configs, sampler, log)
    except NotMeasurableError as reason:
        log(f"beside the twin alone, because {reason}")
        return _measure_modes(variants, configs, None, log)


def _measure_modes(
    variants: Variants, configs: list[Config], sampler: StackSampler | None, log: Log
) -> dict[Arm, list[float]]:
    found: dict[Arm, list[float]] = {}
    for mode in variants.modes:
        log(f"{mode}, building four widths")
        arms: dict[Arm, Callable[[], float]] = {
            (mode, bytes_read(variants, config)): variants.case(mode, config).steady_seconds
            for config in configs
        }
        arms[mode, "twin"] = partial(variants.floor_seconds, variants.twin(mode))
        if sampler is not None:
            arms[mode, "stacks"] = partial(_dispatch, sampler, variants.case(mode))
        with variants.isolated():
            found |= in_rounds(arms, ROUNDS, f"work/{mode}", log)
    return found


def _dispatch(sampler: StackSampler, case: Case) -> float:
    return sampled(sampler, case, SAMPLED_SECONDS).dispatch_seconds


def judge_intercept(found: Mapping[Arm, list[float]]) -> list[CheckResult]:
    """Per mode: the intercept of decode wall time over the widths against the witnesses, paired by round."""
    rows = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        steps = {load: found[mode, load] for m, load in found if m == mode and not isinstance(load, str)}
        seen = {witness: found[mode, witness] for witness in WITNESSES if (mode, witness) in found}
        rows.append(_row(mode, dict(sorted(steps.items())), seen))
    return rows


def beyond(value: float, ends: Sequence[float]) -> float:
    """`value` over the nearest end of the interval that `ends` span; 1 inside of it."""
    return value / min(max(value, min(ends)), max(ends))


def _row(mode: str, steps: Mapping[float, list[float]], seen: Mapping[Witness, list[float]]) -> CheckResult:
    """`steps` are the seconds of every round by the bytes that they read."""
    loads = list(steps)
    intercepts = [max(intercept(loads, line), 1e-9) for line in zip(*steps.values(), strict=True)]
    ratios = [beyond(value, ends) for value, *ends in zip(intercepts, *seen.values(), strict=True)]
    walls = [median_interval(seconds).value for seconds in steps.values()]
    shown = [f"{name} {median_interval(seconds).value * 1e6:.0f} µs" for name, seconds in seen.items()]
    note = (
        f"intercept {median_interval(intercepts).value * 1e6:.0f} µs, {', '.join(shown)};"
        f" line fits within {curvature(loads, walls):.1%}"
    )
    numbers: dict[str, float | list[float]] = {"bytes": loads, "wall_seconds": walls}
    numbers |= {"intercept_seconds": intercepts} | {f"{name}_seconds": s for name, s in seen.items()}
    return interval_result(
        f"{NAME}: {mode}",
        BOUND,
        median_interval(ratios),
        least=LEAST,
        most=MOST,
        note=note,
        numbers=numbers,
    )


INTERCEPT = Check(measure_intercept, judge_intercept, ((NAME, BOUND),))
