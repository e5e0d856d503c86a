"""Reads what torch's profiler recorded: per step its operators, kernels, launch calls and device gaps.

The events are those of the Chrome trace format that Kineto writes (times in microseconds). A kernel belongs
to the step in which its launch call was made, by its correlation id: a replayed graph of 90 kernels is 90
kernels and one launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

STEP_MARK = "launchbound::step"
DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCH_CALLS = frozenset(
    {
        "cudaLaunchKernel", "cudaLaunchKernelExC", "cudaLaunchCooperativeKernel", "cuLaunchKernel",
        "cuLaunchKernelEx", "cudaGraphLaunch", "cuGraphLaunch",
    }
)  # fmt: skip
GRAPH_LAUNCH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch"})

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gaps:
    """Seconds in which the device had no work between the first and the last of a step, by cause.

    `host_wait`: the next work had not been launched when the last one ended. `kernel_wait`: it had been
    launched and took this long to start.
    """

    host_wait_seconds: float
    kernel_wait_seconds: float


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One step as the profiler recorded it. The device's part is None on a CPU.

    `operators` counts the calls that the step made into the dispatcher, not those made by other operators;
    `copies` counts every `aten::copy_`, also those called by other operators.
    """

    operators: int
    copies: int
    kernels: int | None = None
    launches: int | None = None
    graph_launches: int | None = None
    kernel_seconds: float | None = None
    gaps: Gaps | None = None


def read_steps(events: Iterable[Event], cuda: bool) -> list[ProfiledStep]:
    """The marked steps of a trace, in order of time."""
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = sorted(_of(complete, {"user_annotation"}, STEP_MARK), key=lambda mark: mark["ts"])
    every = _operators(complete)
    operators = _outermost(every)
    copies = [event for event in every if event["name"] == "aten::copy_"]
    calls = [event for event in complete if event.get("cat") in {"cuda_runtime", "cuda_driver"}]
    work = _by_correlation(_of(complete, DEVICE_WORK))
    return [
        _step(len(_inside(operators, m)), len(_inside(copies, m)), _inside(calls, m) if cuda else None, work)
        for m in marks
    ]


def operator_table(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Self time per operator over a whole trace: name, calls, self_seconds; the largest first."""
    totals: dict[str, tuple[int, float]] = {}
    stack: list[tuple[Event, list[float]]] = []
    for event in sorted(_operators(events), key=lambda event: (event["ts"], -event["dur"])):
        while stack and event["ts"] >= stack[-1][0]["ts"] + stack[-1][0]["dur"]:
            _settle(totals, *stack.pop())
        if stack:
            stack[-1][1].append(event["dur"])
        stack.append((event, []))
    while stack:
        _settle(totals, *stack.pop())
    rows = [{"name": n, "calls": calls, "self_seconds": micro / 1e6} for n, (calls, micro) in totals.items()]
    return sorted(rows, key=lambda row: float(row["self_seconds"]), reverse=True)


def _operators(events: Iterable[Event]) -> list[Event]:
    """Calls into the dispatcher; compiled regions leave marks of the same category, without a namespace."""
    return [e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X" and "::" in e["name"]]


def _settle(totals: dict[str, tuple[int, float]], event: Event, inner: list[float]) -> None:
    calls, micro = totals.get(event["name"], (0, 0.0))
    totals[event["name"]] = calls + 1, micro + max(0.0, event["dur"] - sum(inner))


def _of(events: Iterable[Event], categories: Iterable[str], name: str | None = None) -> list[Event]:
    chosen = set(categories)
    return [e for e in events if e.get("cat") in chosen and (name is None or e["name"] == name)]


def _inside(events: Sequence[Event], mark: Event) -> list[Event]:
    begin = mark["ts"]
    end = begin + mark["dur"]
    return [event for event in events if begin <= event["ts"] < end]


def _outermost(operators: Sequence[Event]) -> list[Event]:
    """Operators that were not called by another one on their thread."""
    until: dict[Any, float] = {}
    found = []
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= until.get(event.get("tid"), -1.0):
            found.append(event)
            until[event.get("tid")] = event["ts"] + event["dur"]
    return found


def _by_correlation(work: Iterable[Event]) -> dict[int, list[Event]]:
    grouped: dict[int, list[Event]] = {}
    for event in work:
        grouped.setdefault(event["args"]["correlation"], []).append(event)
    return grouped


def _step(
    operators: int, copies: int, calls: list[Event] | None, work: dict[int, list[Event]]
) -> ProfiledStep:
    if calls is None:
        return ProfiledStep(operators=operators, copies=copies)
    launched = [(call, item) for call in calls for item in work.get(call["args"]["correlation"], [])]
    kernels = [item for _, item in launched if item["cat"] == "kernel"]
    names = [call["name"] for call in calls]
    return ProfiledStep(
        operators=operators,
        copies=copies,
        kernels=len(kernels),
        launches=sum(name in LAUNCH_CALLS for name in names),
        graph_launches=sum(name in GRAPH_LAUNCH_CALLS for name in names),
        kernel_seconds=sum(item["dur"] for item in kernels) / 1e6,
        gaps=_gaps(launched),
    )


def _gaps(launched: list[tuple[Event, Event]]) -> Gaps:
    host_wait = kernel_wait = 0.0
    ended: float | None = None
    for call, item in sorted(launched, key=lambda pair: pair[1]["ts"]):
        begin = item["ts"]
        if ended is not None and begin > ended:
            ready = min(max(call["ts"] + call["dur"], ended), begin)
            host_wait += ready - ended
            kernel_wait += begin - ready
        ended = max(ended or begin, begin + item["dur"])
    return Gaps(host_wait / 1e6, kernel_wait / 1e6)
