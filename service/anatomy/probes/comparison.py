"""A step without and with one fault, and how the two are timed against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

import msgspec

from service.measure.rounds import in_rounds
from service.statistics.intervals import Interval, median_interval

WARM_PASSES = 3
"""Untimed calls before a timed one: the first ones after other code take longer."""

NOTE_REPEATS = 25
"""Repeats of what a note gives a time for."""

EVENTS = 6
"""Repeats where every faulty call compiles: the fewest that give a 95 % interval of the median."""


class Counter(msgspec.Struct, frozen=True, kw_only=True):
    """A counter that the fault moves: its value in the step without the fault, and in the step with it."""

    name: str
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step: `call` is timed; `prepare` and `after` run before and after it, untimed."""

    call: Callable[[], object]
    prepare: Callable[[], object] | None = None
    after: Callable[[], object] | None = None
    warm_passes: int = WARM_PASSES


@dataclass(frozen=True, slots=True)
class FaultComparison:
    """Both steps, warmed.

    `blame` is the faulty line as `file:number`. `most_repeats` limits the repeats where each one compiles.
    `subject` is what is timed where that is no step of the model.
    """

    without: TimedStep
    with_fault: TimedStep
    counter: Counter
    blame: str
    notes: list[str] = field(default_factory=list)
    most_repeats: int | None = None
    subject: str | None = None


def interleave(
    comparison: FaultComparison, repeats: int, seed: int, synchronise: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Seconds of `repeats` pairs, without and with the fault; `seed` draws the order within each pair.

    A time ends when the device has finished, so that waits that a fault causes are in it.
    """
    arms = {
        "without": partial(_seconds, comparison.without, synchronise),
        "with": partial(_seconds, comparison.with_fault, synchronise),
    }
    seconds = in_rounds(arms, repeats, str(seed), lambda _: None)
    return seconds["without"], seconds["with"]


def paired_ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """The median of the pairs' ratios: a pair's steps run close together, in one state of the machine."""
    return median_interval([a / b for a, b in zip(above, below, strict=True)])


def ratio_of(above: TimedStep, below: TimedStep, synchronise: Callable[[], object]) -> Interval:
    """The time of `above` over that of `below`, for a note."""
    sides = FaultComparison(below, above, Counter(name="", before=0, after=0), "")
    without, with_fault = interleave(sides, NOTE_REPEATS, 0, synchronise)
    return paired_ratio(with_fault, without)


def median_of(step: TimedStep, synchronise: Callable[[], object]) -> str:
    """The time of `step` for a note, in microseconds with its interval."""
    found = median_interval([_seconds(step, synchronise) for _ in range(NOTE_REPEATS)])
    return f"{found.value * 1e6:.1f} µs [{found.low * 1e6:.1f} to {found.high * 1e6:.1f}]"


def _seconds(step: TimedStep, synchronise: Callable[[], object]) -> float:
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
