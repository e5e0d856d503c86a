"""Steps of the served model, and their samples: what all checks of the split are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from service.measure.cases import Case
from service.measure.cpu_sampler import (
    SAMPLES_PER_SECOND,
    CpuSampler,
    SampledSteps,
    SamplerError,
    sample_steps,
)
from service.measure.variants import Variants
from service.protocol.messages import Phase
from service.selftest.check import NotMeasurableError

PHASES: tuple[Phase, ...] = ("prefill", "decode")

TIMED_SHARE = 0.25
"""Seconds of steps that are timed, per second of those that are sampled: a median needs fewer."""


class ServedStep(NamedTuple):
    """Mode, phase and batch bucket of a step."""

    mode: str
    phase: Phase
    bucket: int

    def __str__(self) -> str:
        return f"{self.mode}, {self.phase}, batch {self.bucket}"


def sampler_of(variants: Variants) -> CpuSampler:
    """The sampler of this thread. Raises NotMeasurableError on CUDA, and where it cannot be sampled."""
    if variants.device.type != "cpu":
        raise NotMeasurableError("on CUDA dispatch is measured")
    try:
        return variants.sampler
    except SamplerError as error:
        raise NotMeasurableError(str(error)) from error


def sampled(
    sampler: CpuSampler,
    case: Case,
    seconds: float,
    beside: Callable[[], object] | None = None,
    samples_per_second: float = SAMPLES_PER_SECOND,
) -> SampledSteps:
    """`case`'s steps in a row, sampled for `seconds`; `beside` runs after each, neither timed nor sampled.

    Raises NotMeasurableError where no sample fell into them.
    """
    run = partial(case.step, *case.arguments)
    sampler.samples_per_second = samples_per_second
    try:
        found = sample_steps(sampler, run, case.phase, TIMED_SHARE * seconds, seconds, beside)
    finally:
        sampler.samples_per_second = SAMPLES_PER_SECOND
    if found is None:
        raise NotMeasurableError(f"no step of {case.mode} was sampled")
    return found
