"""Host seconds of each call of a step: plain and profiled steps in turns, the profiler's cost subtracted.

The profiler reads its clock inside its own work, so a call without inner calls is timed without that work,
and each inner event adds the cost of one event: (profiled - plain step) / events, of the shortest step of
each kind. Rounds end at a budget of seconds, so that long steps are answered too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from service.anatomy.errors import StudyError
from service.anatomy.operators.calls import OperatorCall, StepCalls, record
from service.anatomy.progress import Report
from service.measure.cases import Bench, Case
from service.statistics.intervals import Interval, median_interval

BUDGET_SECONDS = 1.2
"""No round begins after this."""

MOST_STEPS = 40
LEAST_STEPS = 6
"""Plain steps, and as many profiled: the most within the budget, and the fewest for an interval."""


@dataclass(frozen=True, slots=True)
class BlockSize:
    """Steps timed in a row, after `lead` untimed ones."""

    lead: int
    steps: int


SHORT = BlockSize(lead=2, steps=4)
LONG = BlockSize(lead=1, steps=3)


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Per call of the step, in order: its seconds and those since the call before it, less events' cost.

    `lead_seconds` is Python, binding and composite operators. `tail_seconds` is the time after the last call.
    """

    plain: Interval
    profiled: Interval
    event_seconds: float
    own_seconds: list[float]
    lead_seconds: list[float]
    tail_seconds: float

    @property
    def accounted_seconds(self) -> float:
        """The sum of all parts, to compare with `plain`."""
        return sum(self.own_seconds) + sum(self.lead_seconds) + self.tail_seconds


def time_before_profiling(
    bench: Bench, case: Case, report: Report, clock: Callable[[], float] = perf_counter
) -> Interval:
    """Seconds of plain steps on CUDA, before the profiler's library is attached, which may lengthen them."""
    report("timing the step without the profiler")
    plain: list[float] = []
    began = clock()
    while len(plain) < LEAST_STEPS or (len(plain) < MOST_STEPS and clock() - began < BUDGET_SECONDS):
        plain += _plain(bench, case, SHORT)
    return median_interval(plain)


def _plain(bench: Bench, case: Case, size: BlockSize) -> list[float]:
    """Seconds of a block of plain steps, each issued to an idle device."""
    for _ in range(size.lead):
        case.call_seconds()
    bench.synchronise()
    seconds = []
    for _ in range(size.steps):
        seconds.append(case.call_seconds())
        bench.synchronise()
    return seconds


def time_operators(
    bench: Bench,
    case: Case,
    calls: tuple[OperatorCall, ...],
    report: Report,
    clock: Callable[[], float] = perf_counter,
) -> OperatorTimes:
    """Rounds of plain and profiled steps, until the budget is spent by `clock`.

    Raises StudyError where the step does not make the same calls each time.
    """
    plain: list[float] = []
    recorded: list[StepCalls] = []
    report("timing operators")
    began = clock()
    case.call()
    bench.synchronise()
    size = SHORT if (clock() - began) * MOST_STEPS < BUDGET_SECONDS else LONG
    # Not `in_rounds`: rounds end at a budget, and a round's profiled steps share one profiler session.
    # Each side begins with untimed steps, so that neither follows the other directly.
    while len(plain) < LEAST_STEPS or (len(plain) < MOST_STEPS and clock() - began < BUDGET_SECONDS):
        plain += _plain(bench, case, size)
        recorded += record(case, size.steps)
    names = [call.schema_name for call in calls]
    if any([call.schema_name for call in step.calls] != names for step in recorded):
        raise StudyError("unsupported_here", "this step does not make the same calls every time: try again")
    return _times(plain, recorded)


def _times(plain: list[float], recorded: list[StepCalls]) -> OperatorTimes:
    whole = median_interval(plain)
    profiled = median_interval([step.seconds for step in recorded])
    events = recorded[0].events
    # Of the shortest steps: other work on the machine only lengthens a step, and would count as profiler.
    longer = min(step.seconds for step in recorded) - min(plain)
    cost = max(longer, 0.0) / max(events, 1)
    own = []
    lead = []
    for place, call in enumerate(recorded[0].calls):
        seconds = median(step.calls[place].seconds for step in recorded)
        own.append(max(seconds - call.inner * cost, 0.0))
        between = median(_since_the_last(step, place) for step in recorded)
        # Before a call begin its own event and those of the composite operators around it.
        events_before = 1 + _newly_entered(recorded[0].calls, place)
        lead.append(max(between - events_before * cost, 0.0))
    tail = median(_after_the_last(step) for step in recorded)
    return OperatorTimes(whole, profiled, cost, own, lead, tail)


def _since_the_last(step: StepCalls, place: int) -> float:
    call = step.calls[place]
    if place == 0:
        return (call.begin_ns - step.begin_ns) / 1e9
    last = step.calls[place - 1]
    return (call.begin_ns - last.begin_ns) / 1e9 - last.seconds


def _after_the_last(step: StepCalls) -> float:
    if not step.calls:
        return step.seconds
    last = step.calls[-1]
    return step.seconds - (last.begin_ns - step.begin_ns) / 1e9 - last.seconds


def _newly_entered(calls: tuple[OperatorCall, ...], place: int) -> int:
    """Composite operators around this call that were not around the one before it, by name."""
    within = calls[place].within
    before = calls[place - 1].within if place else ()
    shared = 0
    for mine, theirs in zip(within, before, strict=False):
        if mine != theirs:
            break
        shared += 1
    return len(within) - shared
