"""The split of steps with work inside or beside, in the time that the sampled steps themselves take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from time import thread_time_ns
from typing import NamedTuple

from service.measure.cases import Case
from service.selftest.sampled_dispatch import sampled
from service.step.native.stacks import StackSampler

SAMPLED_SECONDS = 0.24
"""Long enough for some 1,200 samples: with a third of that the intervals were twice as wide."""

Work = Callable[[], object]


class TimedWork:
    """`work`, with the CPU seconds of each of its runs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.seconds: list[float] = []

    def __call__(self) -> None:
        """Run it once."""
        began = thread_time_ns()
        self.work()
        self.seconds.append((thread_time_ns() - began) / 1e9)


@dataclass(frozen=True, slots=True)
class Arm:
    """A step with the work `inside` it, which times itself, and other work `beside`: after each step."""

    case: Case
    inside: TimedWork | None
    beside: Work | None


class Sample(NamedTuple):
    """A sampled step's parts, and the length of the work inside it, on average; 0 without any."""

    kernel_seconds: float
    dispatch_seconds: float
    inside_seconds: float


def step_sample(sampler: StackSampler, arm: Arm) -> Sample:
    """Of steps in a row, sampled for SAMPLED_SECONDS. What is beside is neither timed nor sampled.

    Samples slow a step's own code, and work that hardly leaves the caches not at all: only within the time
    that both take while they are sampled do shares of samples stand for shares of time.
    """
    inside = arm.inside
    if inside is not None:
        inside.seconds.clear()
    found = sampled(sampler, arm.case, SAMPLED_SECONDS, arm.beside)
    step = fmean(found.sampled_seconds)
    of_inside = fmean(inside.seconds[-len(found.sampled_seconds) :]) if inside else 0.0
    return Sample(found.kernel_share * step, (1 - found.kernel_share) * step, of_inside)
