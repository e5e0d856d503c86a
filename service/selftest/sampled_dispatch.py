"""Real steps, sampled: how the checks get the split that native stacks give, and where they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial

from service.measure.cases import Case
from service.selftest.check import NotMeasurableError
from service.step.native.perf_events import SAMPLES_PER_SECOND, PerfError
from service.step.native.stacks import SampledSteps, StackSampler, sample_steps

FIRST_SECONDS = 0.1
MOST_SECONDS = 0.5
"""Of steps that are sampled: to learn the share of what is wanted, and at most, however small that is."""

TIMED_SHARE = 0.25
"""Seconds of steps that are timed, per second of those that are sampled: a median needs fewer."""


@contextmanager
def stack_sampler(samples_per_second: int = SAMPLES_PER_SECOND) -> Iterator[StackSampler]:
    """A sampler of this thread. Raises NotMeasurableError, with the remedy, where the system forbids it."""
    try:
        sampler = StackSampler(samples_per_second)
    except PerfError as error:
        raise NotMeasurableError(str(error)) from error
    with closing(sampler):
        yield sampler


def seconds_for(wanted: int, share: float) -> float:
    """Of steps, in which `wanted` samples of what has this `share` of them are expected, or MOST_SECONDS."""
    return min(MOST_SECONDS, wanted / SAMPLES_PER_SECOND / max(share, 1e-3))


def sampled(
    sampler: StackSampler, case: Case, seconds: float, beside: Callable[[], object] | None = None
) -> SampledSteps:
    """The split of `case`'s steps in a row, sampled for `seconds`; `beside` runs after each, not counted.

    Raises NotMeasurableError where samples were lost: a step then takes seconds.
    """
    arguments = case.arguments
    run = partial(case.step, *arguments)
    found = sample_steps(sampler, run, case.phase, TIMED_SHARE * seconds, seconds, beside)
    if found is None:
        raise NotMeasurableError(f"steps of {case.mode} are too long or too short to be sampled")
    return found
