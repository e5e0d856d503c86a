"""Samples of a step with work beside it, off the step's clock, and the length of that work."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

from service.measure.cases import Case
from service.step.calibration import cold_seconds
from service.step.untimed import LEAD_STEPS

STEPS = 12

Work = Callable[[], object]


class Sample(NamedTuple):
    """The shortest sum of a step and the work beside it, and the shortest work; interference only adds."""

    with_work_seconds: float
    work_seconds: float

    @property
    def step_seconds(self) -> float:
        """The step of the shortest sum, which is what a step with the work inside is compared with.

        Not the shortest step: the shortest step and the shortest work add up to less than the shortest sum.
        """
        return self.with_work_seconds - self.work_seconds


def step_sample(case: Case, beside: Work | None) -> Sample:
    """Of STEPS steps in a row, `beside` after each, off its clock."""
    steps: list[float] = []
    works: list[float] = []
    for _ in range(LEAD_STEPS + STEPS):
        steps.append(case.call_seconds())
        works.append(_seconds_of(beside))
    return shortest(steps, works)


def floor_sample(twin: Case, beside: Work | None) -> Sample:
    """Of STEPS samples of the floor by calibration's own code, `beside` before each call, off its clock."""
    works: list[float] = []

    def work_first() -> bool:
        works.append(_seconds_of(beside))
        return False

    cache = twin.eviction.cache if twin.eviction else None
    before_step = twin.eviction.before_step if twin.eviction else False
    steps = cold_seconds(twin.step, twin.arguments, cache, before_step, STEPS, interrupted=work_first)
    return shortest(steps, works)


def shortest(steps: list[float], works: list[float]) -> Sample:
    """Of the last STEPS of either; each step with its own work."""
    pairs = zip(steps[-STEPS:], works[-STEPS:], strict=True)
    return Sample(min(step + work for step, work in pairs), min(works[-STEPS:]))


def _seconds_of(work: Work | None) -> float:
    if work is None:
        return 0.0
    began = perf_counter_ns()
    work()
    return (perf_counter_ns() - began) / 1e9
