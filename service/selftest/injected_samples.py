"""The split of a step with work beside it, off the step's clock, and the length of that work."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import NamedTuple

from service.measure.cases import Case
from service.selftest.sampled_dispatch import sampled
from service.step.native.stacks import StackSampler

SAMPLED_SECONDS = 0.08

Work = Callable[[], object]


class Sample(NamedTuple):
    """A step's parts, and the median length of the work beside it; 0 without any."""

    kernel_seconds: float
    dispatch_seconds: float
    work_seconds: float


def step_sample(sampler: StackSampler, case: Case, beside: Work | None) -> Sample:
    """Of steps in a row, sampled for SAMPLED_SECONDS; `beside` after each, neither timed nor sampled."""
    timed = None if beside is None else TimedWork(beside)
    found = sampled(sampler, case, SAMPLED_SECONDS, timed)
    return Sample(found.kernel_seconds, found.dispatch_seconds, median(timed.seconds) if timed else 0.0)


class TimedWork:
    """`work`, with the seconds of each of its runs."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.seconds: list[float] = []

    def __call__(self) -> None:
        """Run it once."""
        began = perf_counter_ns()
        self._work()
        self.seconds.append((perf_counter_ns() - began) / 1e9)
