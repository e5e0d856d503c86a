"""Reads what torch's profiler recorded: per step its operators, kernels, launch calls and device gaps.

A replayed graph of 90 kernels is 90 kernels and one launch. A step of which kernels may be missing has none,
rather than fewer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from service.step.kernel_matching import StepWork, busy_microseconds, match_work
from service.step.operator_events import operator_calls, outermost
from service.step.trace import (
    GRAPH_LAUNCH_CALLS,
    LAUNCH_CALLS,
    Event,
    Gaps,
    ProfiledStep,
    clock_behind,
    complete_events,
    inside,
    step_marks,
)


class KernelCounts:
    """How often steps of one name had how many kernels, over the traces of one mode at one batch size."""

    def __init__(self) -> None:
        self._found: dict[str, Counter[int]] = defaultdict(Counter)

    def add(self, name: str, kernels: int) -> None:
        """Count a step."""
        self._found[name][kernels] += 1

    def usual(self, name: str) -> int:
        """The most frequent number. Raises ValueError where no step of this name was counted.

        Of two numbers that are equally frequent it is the larger: kernels get lost, and none is made up.
        """
        found = self._found[name]
        return max(found, key=lambda kernels: (found[kernels], kernels))


def read_steps(events: Iterable[Event], cuda: bool, counts: KernelCounts | None = None) -> list[ProfiledStep]:
    """The marked steps of a trace, in order of time.

    Steps with the same name of their mark are alike: those among them that have another number of kernels
    than is usual are refused, that is, their kernels are unknown. `counts` has those of earlier traces of the
    same mode and batch size, and takes this trace's: the only step of its name is then compared, too.
    """
    complete = complete_events(events)
    marks = step_marks(complete)
    every = operator_calls(complete)
    operators = outermost(every)
    copies = [event for event in every if event["name"] == "aten::copy_"]
    steps = [ProfiledStep(len(inside(operators, mark)), len(inside(copies, mark))) for mark in marks]
    if not cuda:
        return steps
    found = [_on_device(*pair) for pair in zip(steps, match_work(complete, marks), strict=True)]
    names = [mark["name"] for mark in marks]
    return _refuse_unusual(found, names, KernelCounts() if counts is None else counts)


def _on_device(step: ProfiledStep, found: StepWork) -> ProfiledStep:
    names = [call["name"] for call in found.calls]
    # Without any call in its trace a step's launches are as unknown as its kernels.
    counted = replace(
        step,
        launches=sum(name in LAUNCH_CALLS for name in names) if names else None,
        graph_launches=sum(name in GRAPH_LAUNCH_CALLS for name in names) if names else None,
        unknown=found.unknown,
    )
    if found.matched is None:
        return counted
    kernels = found.kernels
    return replace(
        counted,
        kernels=len(kernels),
        kernel_seconds=busy_microseconds(kernels) / 1e6,
        kernel_sum_seconds=sum(item["dur"] for item in kernels) / 1e6,
        gaps=_gaps(found.items),
        matched=found.matched,
    )


def _refuse_unusual(steps: list[ProfiledStep], names: list[str], counts: KernelCounts) -> list[ProfiledStep]:
    for step, name in zip(steps, names, strict=True):
        if step.kernels is not None:
            counts.add(name, step.kernels)
    return [
        step
        if step.kernels is None or step.kernels == counts.usual(name)
        else _refused(step, counts.usual(name))
        for step, name in zip(steps, names, strict=True)
    ]


def _refused(step: ProfiledStep, usual: int) -> ProfiledStep:
    return replace(
        step,
        kernels=None,
        kernel_seconds=None,
        kernel_sum_seconds=None,
        gaps=None,
        matched=None,
        unknown=f"{step.kernels} kernels, where {usual} are usual",
    )


def _gaps(items: Sequence[tuple[Event | None, Event]]) -> Gaps:
    idle = host_wait = 0.0
    behind = clock_behind(items)
    ended: float | None = None
    before: Event | None = None
    told = all(call is not None for call, _ in items)
    for call, item in items:
        begin = item["ts"]
        if ended is not None and begin > ended:
            idle += begin - ended
            returned = ended if call is None else call["ts"] + call["dur"] - behind
            told = told and not (call is before and returned > ended)
            host_wait += min(max(returned, ended), begin) - ended
        ended = max(begin if ended is None else ended, begin + item["dur"])
        before = call
    if not told:
        return Gaps(idle / 1e6, None, None)
    return Gaps(idle / 1e6, host_wait / 1e6, (idle - host_wait) / 1e6)
