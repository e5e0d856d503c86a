"""A step without and with one fault, and how the two are timed against each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

import msgspec

WARM_PASSES = 3
"""Untimed calls before a timed one: after other code the first passes read too long."""

EVENTS = 6
"""Repeats where every faulty call compiles: the fewest that give a 95 % interval of the median."""


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """What the fault moves: its reading in the step without the fault, and in the step with it."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """One of the two steps: `call` is timed, and `prepare` and `after` run before and after it, untimed."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    warm_passes: int = WARM_PASSES


@dataclass(frozen=True, slots=True)
class FaultComparison:
    """Both steps, warmed, and what was learnt while they were.

    `blame` is the faulty line as `file:number`. `most_repeats` bounds the repeats where each one is dear.
    """

    without: TimedStep
    with_fault: TimedStep
    counter: Counter
    blame: str
    notes: list[str] = field(default_factory=list)
    most_repeats: int | None = None


def interleave(
    comparison: FaultComparison, repeats: int, seed: int, synchronise: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Seconds of `repeats` pairs, without and with the fault; `seed` draws the order within each pair.

    A time ends when the device has finished, so that what a fault makes it wait for is seen.
    """
    order, steps = random.Random(seed), (comparison.without, comparison.with_fault)
    seconds: tuple[list[float], list[float]] = [], []
    for _ in range(repeats):
        for index in order.sample((0, 1), 2):
            seconds[index].append(_timed(steps[index], synchronise))
    return seconds


def _timed(step: TimedStep, synchronise: Callable[[], object]) -> float:
    if step.prepare is not None:
        step.prepare()
    for _ in range(step.warm_passes):
        step.call()
    synchronise()
    began = perf_counter_ns()
    step.call()
    synchronise()
    ended = perf_counter_ns()
    if step.after is not None:
        step.after()
    return (ended - began) / 1e9
