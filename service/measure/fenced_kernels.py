"""Kernels of profiled steps that are fenced: nothing of one step runs on the device once the next begins.

The events are those of the Chrome trace format that Kineto writes (times in microseconds).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile, record_function

from service.step.profiling import chrome_events
from service.step.trace import STEP_MARK, Event

LEAD_CALLS = 2
"""Unmarked, when a session begins: the first kernels that it records may be lost (pytorch #192021)."""


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """What ran on the device in one step. `busy_seconds` counts overlapping kernels once.

    `span_seconds` goes from the first kernel's begin to the last one's end, gaps included.
    """

    kernels: int
    busy_seconds: float
    span_seconds: float


def record_fenced(call: Callable[[], object], wait: Callable[[], None], steps: int) -> list[Event]:
    """The events of one profiler session of `steps` marked calls of `call`, each followed by `wait`."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as session:
        for _ in range(LEAD_CALLS):
            call()
        wait()
        for _ in range(steps):
            with record_function(STEP_MARK):
                call()
            wait()
    return chrome_events(session)


def kernels_by_window(events: Iterable[Event]) -> list[list[Event]]:
    """The kernels of each marked step, by the instant at which they began: before the next mark.

    Needs no correlation ids, which CUPTI before 13.1 U1 gives wrongly to kernels of a replayed graph from the
    second session of a process on (its release notes).
    """
    marks, kernels = _marks_and_kernels(events)
    begins = [mark["ts"] for mark in marks]
    found: list[list[Event]] = [[] for _ in marks]
    for kernel in kernels:
        place = bisect_right(begins, kernel["ts"])
        if place:
            found[place - 1].append(kernel)
    return found


def kernels_by_id(events: Sequence[Event]) -> list[list[Event]]:
    """The kernels of each marked step, by the correlation id of a launch call inside its mark."""
    marks, kernels = _marks_and_kernels(events)
    calls = [event for event in events if event.get("cat") in {"cuda_runtime", "cuda_driver"}]
    found = []
    for mark in marks:
        end = mark["ts"] + mark["dur"]
        ids = {call["args"].get("correlation") for call in calls if mark["ts"] <= call["ts"] < end}
        found.append([kernel for kernel in kernels if kernel["args"].get("correlation") in ids])
    return found


def device_work(kernels: Sequence[Event]) -> DeviceWork | None:
    """Sums over the `kernels` of one step; None where the profiler saw none, which is not the same as 0."""
    if not kernels:
        return None
    spans = sorted((kernel["ts"], kernel["ts"] + kernel["dur"]) for kernel in kernels)
    busy, until = 0.0, spans[0][0]
    for begin, end in spans:
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return DeviceWork(len(spans), busy / 1e6, (until - spans[0][0]) / 1e6)


def _marks_and_kernels(events: Iterable[Event]) -> tuple[list[Event], list[Event]]:
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = [e for e in complete if e.get("cat") == "user_annotation" and e["name"] == STEP_MARK]
    return sorted(marks, key=lambda mark: mark["ts"]), [e for e in complete if e.get("cat") == "kernel"]
