"""The words of a profiler's trace: its events, the marks of steps, and what is read of one step.

The events are those of the Chrome trace format that Kineto writes (times in microseconds).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Event = dict[str, Any]
"""An event of the Chrome trace format as Kineto writes it; times in microseconds."""

Matched = Literal["correlation", "window"]

RUNTIME = frozenset({"cuda_runtime", "cuda_driver"})
DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCH_CALLS = frozenset(
    {
        "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cuLaunchKernel",
        "cuLaunchKernelEx", "cudaGraphLaunch", "cuGraphLaunch",
    }
)  # fmt: skip
GRAPH_LAUNCH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})

STEP_MARK = "launchbound::step"
"""The name of a step's mark, or what it begins with: see `is_step_mark`."""

LEAD_MARK = "launchbound::lead"
"""The name of the mark around discarded work at the begin of a session."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds in which the device had no work between the first and the last of a step, and by cause.

    `idle` is by the device's clock alone. It is the sum of `host_wait`, in which the next work had not been
    launched when the last one ended, and `kernel_wait`, in which it had been launched and took this long to
    start: that compares the device's clock with the host's, corrected by `clock_behind`. Both are None where
    the trace does not tell: which call started some work, or, between two kernels of a graph whose launch
    call has not returned, whether the host was still at the second.
    """

    idle_seconds: float
    host_wait_seconds: float | None
    kernel_wait_seconds: float | None


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One step as the profiler recorded it. The device's part is None on a CPU.

    `operators` counts the calls that the step made into the dispatcher, not those made by other operators;
    `copies` counts every `aten::copy_`, also those called by other operators.
    `kernel_seconds` is the time in which the device ran any kernel of the step (the union of their
    intervals); `kernel_sum_seconds` is the sum of their durations, which is more where streams overlap.
    `matched` is how the device's work was found to be the step's. Where it is None on CUDA, `unknown` has the
    reason, and kernels, their times and the gaps are None: a step has kernels, so their number is never 0.
    """

    operators: int
    copies: int
    kernels: int | None = None
    launches: int | None = None
    graph_launches: int | None = None
    kernel_seconds: float | None = None
    kernel_sum_seconds: float | None = None
    gaps: Gaps | None = None
    matched: Matched | None = None
    unknown: str | None = None


def is_step_mark(event: Event) -> bool:
    """Whether `event` marks a step: its name is STEP_MARK, or begins so and goes on with the step's shape."""
    name: str = event["name"]
    return event.get("cat") == "user_annotation" and (name == STEP_MARK or name.startswith(f"{STEP_MARK} "))


def step_marks(events: Iterable[Event]) -> list[Event]:
    """The marks of steps, in order of time."""
    return sorted(filter(is_step_mark, complete_events(events)), key=lambda mark: float(mark["ts"]))


def without_lead(events: Iterable[Event]) -> list[Event]:
    """The complete events that do not begin within discarded work."""
    complete = complete_events(events)
    leads = [(event["ts"], event["ts"] + event["dur"]) for event in complete if event["name"] == LEAD_MARK]
    return [e for e in complete if not any(begin <= e["ts"] < end for begin, end in leads)]


def complete_events(events: Iterable[Event]) -> list[Event]:
    """Those with a begin and a length."""
    return [event for event in events if event.get("ph") == "X" and "dur" in event]


def inside(events: Iterable[Event], mark: Event) -> list[Event]:
    """The events that begin within `mark`, by the host's clock."""
    begin = mark["ts"]
    end = begin + mark["dur"]
    return [event for event in events if begin <= event["ts"] < end]


def clock_behind(items: Iterable[tuple[Event | None, Event]]) -> float:
    """By how many microseconds the device's clock lies behind the host's at least, from calls and their work.

    No work begins before its call; where it does by the two clocks, they differ.
    """
    leads = (call["ts"] - item["ts"] for call, item in items if call is not None)
    return max(0.0, max(leads, default=0.0))


def typical_step(steps: Sequence[ProfiledStep]) -> ProfiledStep:
    """Of steps that are alike the one with the median kernel time; the first where none is known."""
    known = sorted(
        (step for step in steps if step.kernel_seconds is not None),
        key=lambda step: step.kernel_seconds or 0.0,
    )
    return known[(len(known) - 1) // 2] if known else steps[0]
