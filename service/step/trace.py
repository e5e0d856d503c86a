"""What a profiler's trace says: its steps, their operators, and which device work belongs to which of them.

Events are those of the Chrome trace format that Kineto writes (times in microseconds). CUPTI gives a launch
call and all that it started one correlation id. Before its version 13.1 Update 1 the ids of graph launches
and of their kernels are wrong from a process's second profiling session on (its release notes), so ids count
only while nothing in the trace contradicts them, and those of graphs only where a window could have.

Else a step's work is what ran in its window on the device. The device's clock lies behind the host's by an
unknown time (pytorch #192021), so a window is cut on the device's own clock, by the plain launches between
two steps (a copy of tokens, say), whose ids are right: on one stream what was launched before such a
*separator* runs before it, and what was launched later after it.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from service.records import Phase

Event = dict[str, Any]

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

SHAPED_MARK = re.compile(rf"{STEP_MARK} \w+ (\d+)/(\d+)")

LEAD_MARK = "launchbound::lead"
"""The mark around discarded work at the begin of a session."""


class StepShape(NamedTuple):
    """Tokens per row that a step computes, and positions of the cache that its attention reads."""

    row_tokens: int
    attended_tokens: int


def mark_name(phase: Phase, shape: StepShape) -> str:
    """The name of a step's mark, so that steps of one name are alike: `launchbound::step decode 1/64`."""
    return f"{STEP_MARK} {phase} {shape.row_tokens}/{shape.attended_tokens}"


def marked_shape(mark: Event) -> StepShape | None:
    """The shape that a step's mark has in its name; None where it has none."""
    found = SHAPED_MARK.fullmatch(mark["name"])
    return StepShape(int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True, slots=True)
class ProfiledStep:
    """One step as the profiler recorded it. The device's part is None on a CPU.

    `operators` counts the calls that the step made into the dispatcher, not those made by other operators.
    `kernel_seconds` is the union of the kernels' intervals, `kernel_sum_seconds` the sum of their durations.
    `matched` is how the work was found to be the step's. Where that is None on CUDA, so are kernels and their
    times, for the reason in `unknown`. `shape` is None where the mark does not name it.
    """

    operators: int
    shape: StepShape | None = None
    kernels: int | None = None
    launches: int | None = None
    graph_launches: int | None = None
    kernel_seconds: float | None = None
    kernel_sum_seconds: float | None = None
    matched: Matched | None = None
    unknown: str | None = None


def is_step_mark(event: Event) -> bool:
    """Whether `event` marks a step: its name is STEP_MARK, or begins so and goes on with the step's shape."""
    name: str = event["name"]
    return event.get("cat") == "user_annotation" and (name == STEP_MARK or name.startswith(f"{STEP_MARK} "))


def step_marks(events: Iterable[Event]) -> list[Event]:
    return sorted(filter(is_step_mark, complete_events(events)), key=lambda mark: float(mark["ts"]))


def without_lead(events: Iterable[Event]) -> list[Event]:
    """The complete events that do not begin within discarded work."""
    complete = complete_events(events)
    leads = [(event["ts"], event["ts"] + event["dur"]) for event in complete if event["name"] == LEAD_MARK]
    return [e for e in complete if not any(begin <= e["ts"] < end for begin, end in leads)]


def complete_events(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.get("ph") == "X" and "dur" in event]


def inside(events: Iterable[Event], mark: Event) -> list[Event]:
    """The events that begin within `mark`, by the host's clock."""
    begin = mark["ts"]
    end = begin + mark["dur"]
    return [event for event in events if begin <= event["ts"] < end]


def by_mark(events: Iterable[Event], marks: Sequence[Event]) -> list[list[Event]]:
    """`inside` for each of `marks`, which are in order of time and do not overlap."""
    begins = [mark["ts"] for mark in marks]
    found: list[list[Event]] = [[] for _ in marks]
    for event in events:
        place = bisect_right(begins, event["ts"]) - 1
        if place >= 0 and event["ts"] < begins[place] + marks[place]["dur"]:
            found[place].append(event)
    return found


def clock_behind(items: Iterable[tuple[Event | None, Event]]) -> float:
    """Microseconds by which the device's clock is at least behind: no work begins before its call."""
    delays = (call["ts"] - item["ts"] for call, item in items if call is not None)
    return max(0.0, max(delays, default=0.0))


def typical_step(steps: Sequence[ProfiledStep]) -> ProfiledStep:
    """Of steps that are alike the one with the median kernel time; the first where none is known."""
    known = [step for step in steps if step.kernel_seconds is not None]
    known.sort(key=lambda step: step.kernel_seconds or 0.0)
    return known[(len(known) - 1) // 2] if known else steps[0]


def seconds_by_shape(steps: Iterable[ProfiledStep]) -> dict[StepShape, list[float]]:
    """Kernel seconds by shape, of the steps of which both are known."""
    found: dict[StepShape, list[float]] = defaultdict(list)
    for step in steps:
        if step.shape is not None and step.kernel_seconds is not None:
            found[step.shape].append(step.kernel_seconds)
    return found


def operator_calls(events: Iterable[Event]) -> list[Event]:
    """Calls into the dispatcher; compiled regions leave marks of the same category, without a namespace."""
    return [e for e in events if e.get("cat") == "cpu_op" and e.get("ph") == "X" and "::" in e["name"]]


def outermost(operators: Sequence[Event]) -> list[Event]:
    """Operators that were not called by another one on their thread."""
    until: dict[Any, float] = {}
    found = []
    for event in sorted(operators, key=lambda event: (event["ts"], -event["dur"])):
        if event["ts"] >= until.get(event.get("tid"), -1.0):
            found.append(event)
            until[event.get("tid")] = event["ts"] + event["dur"]
    return found


def operator_table(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Self time per operator over a whole trace: name, calls, self_seconds; the largest first."""
    calls: Counter[str] = Counter()
    micro: dict[str, float] = defaultdict(float)
    within: list[Event] = []
    for event in sorted(operator_calls(events), key=lambda event: (event["ts"], -event["dur"])):
        while within and event["ts"] >= within[-1]["ts"] + within[-1]["dur"]:
            within.pop()
        if within:
            micro[within[-1]["name"]] -= event["dur"]
        calls[event["name"]] += 1
        micro[event["name"]] += event["dur"]
        within.append(event)
    rows = [{"name": name, "calls": calls[name], "self_seconds": micro[name] / 1e6} for name in calls]
    return sorted(rows, key=lambda row: float(row["self_seconds"]), reverse=True)


KernelCounts = dict[str, Counter[int]]
"""How often steps of one name had how many kernels, over the traces of one mode at one batch size."""


def read_steps(events: Iterable[Event], cuda: bool, counts: KernelCounts | None = None) -> list[ProfiledStep]:
    """The marked steps of a trace, in order of time.

    Steps with the same name of their mark are alike: those with another number of kernels than is usual are
    refused, that is, their kernels are unknown. `counts` has those of earlier traces of the same mode and
    batch size, and takes this trace's. A replayed graph of 90 kernels is 90 kernels and one launch.
    """
    complete = complete_events(events)
    marks = step_marks(complete)
    operators = outermost(operator_calls(complete))
    within = by_mark(operators, marks)
    steps = [ProfiledStep(len(own), marked_shape(mark)) for own, mark in zip(within, marks, strict=True)]
    if not cuda:
        return steps
    found = [_on_device(*pair) for pair in zip(steps, match_work(complete, marks), strict=True)]
    names = [mark["name"] for mark in marks]
    return _refuse_unusual(found, names, {} if counts is None else counts)


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
        matched=found.matched,
    )


def _refuse_unusual(steps: list[ProfiledStep], names: list[str], counts: KernelCounts) -> list[ProfiledStep]:
    """Kernels get lost and none is made up: of two equally frequent numbers the larger is usual."""
    for step, name in zip(steps, names, strict=True):
        if step.kernels is not None:
            counts.setdefault(name, Counter())[step.kernels] += 1
    usual = {name: max(found, key=lambda n: (found[n], n)) for name, found in counts.items()}
    return [
        step
        if step.kernels is None or step.kernels == usual[name]
        else ProfiledStep(
            step.operators,
            step.shape,
            launches=step.launches,
            graph_launches=step.graph_launches,
            unknown=f"{step.kernels} kernels, where {usual[name]} are usual",
        )
        for step, name in zip(steps, names, strict=True)
    ]


NOTHING_RECORDED = (
    "the profiler recorded nothing of the device: allow CUPTI here (the driver's option "
    "NVreg_RestrictProfilingToAdminUsers=0), and end other profilers"
)
NO_LAUNCH = "no launch call of this step is in the trace"
NOT_SEPARATED = (
    "the trace's correlation ids are wrong or not proved, and nothing separates this step from the next"
)


@dataclass(frozen=True, slots=True)
class StepWork:
    """The CUDA calls of one step, and what they started, in order of device time: pairs of a call, None where
    only the window shows whose work it is, and its work. `matched` None: the work is unknown, for the reason
    in `unknown`, and there are no items.
    """

    calls: list[Event]
    items: list[tuple[Event | None, Event]] = field(default_factory=list)
    matched: Matched | None = None
    unknown: str | None = None

    @property
    def kernels(self) -> list[Event]:
        return [item for _, item in self.items if item["cat"] == "kernel"]


class _Ids:
    """What correlation ids say: `calls` and what they `started` by id. `plain` are ids of one call that is no
    graph launch, and of one piece of its work.
    """

    def __init__(self, calls: Iterable[Event], work: Iterable[Event]) -> None:
        self.calls = {_id(call): call for call in calls}
        self.started: dict[int, list[Event]] = defaultdict(list)
        for item in work:
            self.started[_id(item)].append(item)
        self.plain = {
            number
            for number, items in self.started.items()
            if len(items) == 1 and number in self.calls and _can_start(self.calls[number], items[0])
        }

    @property
    def consistent(self) -> bool:
        """Whether all work has a call that can have started it."""
        graphs = {_id(call) for call in _graphs(self.calls.values())}
        return self.started.keys() <= self.plain | graphs

    def separates(self, call: Event) -> float | None:
        """When the work of `call` began on the device; None where `call` is not plain."""
        number = _id(call)
        return self.started[number][0]["ts"] if number in self.plain else None

    def items(self, calls: Iterable[Event]) -> list[tuple[Event | None, Event]]:
        found: list[tuple[Event | None, Event]] = [
            (call, item) for call in calls for item in self.started.get(_id(call), [])
        ]
        return sorted(found, key=lambda pair: float(pair[1]["ts"]))


Window = tuple[float, float]
"""The device's times that a step's work lies between."""


def match_work(events: Sequence[Event], marks: Sequence[Event], way: Matched | None = None) -> list[StepWork]:
    """The work of each of `marks`, which are in order of time, from all complete events of their trace. `way`
    is for probes that compare both; None: by ids where they are proved, else by windows.
    """
    calls = [event for event in events if event.get("cat") in RUNTIME]
    work = sorted((e for e in events if e.get("cat") in DEVICE_WORK), key=lambda item: float(item["ts"]))
    within = by_mark(calls, marks)
    if not work:
        return [StepWork(own, unknown=NOTHING_RECORDED) for own in within]
    ids = _Ids(calls, work)
    windows = _windows(marks, ids)
    if way is None:
        way = "correlation" if ids.consistent and _proved(within, windows, ids) else "window"
    if way == "correlation":
        return [_by_id(own, ids) for own in within]
    return [_by_window(own, window, work, ids) for own, window in zip(within, windows, strict=True)]


def busy_microseconds(work: Iterable[Event]) -> float:
    """The time in which at least one of `work` ran, the union: streams that overlap are counted once."""
    busy = 0.0
    until = -math.inf
    for item in sorted(work, key=lambda item: float(item["ts"])):
        # By durations: an instant of a trace has only the precision of nanoseconds, which would add up.
        busy += max(0.0, item["dur"] - max(0.0, until - item["ts"]))
        until = max(until, item["ts"] + item["dur"])
    return busy


def _windows(marks: Sequence[Event], ids: _Ids) -> list[Window | None]:
    """The window of each step; None without a separator on both sides."""
    gaps: list[list[Event]] = [[] for _ in range(len(marks) + 1)]
    starting = [call for call in ids.calls.values() if call["name"] in LAUNCH_CALLS or _copies(call)]
    begins = [mark["ts"] for mark in marks]
    for call in sorted(starting, key=lambda call: float(call["ts"])):
        place = bisect_right(begins, call["ts"])
        if not place or call["ts"] >= begins[place - 1] + marks[place - 1]["dur"]:
            gaps[place].append(call)
    found: list[Window | None] = []
    for before, after in pairwise(gaps):
        begin = ids.separates(before[-1]) if before else None
        # Behind the last step there may be nothing at all.
        end = ids.separates(after[0]) if after else (math.inf if after is gaps[-1] else None)
        found.append(None if begin is None or end is None else (begin, end))
    return found


def _proved(within: Sequence[list[Event]], windows: Sequence[Window | None], ids: _Ids) -> bool:
    """Whether all work lies by its id in the step that it ran in; ids that are off by one launch do not.

    Where no step that launches a graph has a window, nothing could have shown that its ids are wrong.
    """
    seen = [(own, window) for own, window in zip(within, windows, strict=True) if window is not None]
    if any(_graphs(own) for own in within) and not any(_graphs(own) for own, _ in seen):
        return False
    return all(window[0] < item["ts"] < window[1] for own, window in seen for _, item in ids.items(own))


def _by_id(calls: list[Event], ids: _Ids) -> StepWork:
    launches = _launches(calls)
    if not launches:
        return StepWork(calls, unknown=NO_LAUNCH)
    if lost := sum(_id(call) not in ids.started for call in launches):
        return StepWork(calls, unknown=f"{lost} of {len(launches)} launches have no kernel in the trace")
    return StepWork(calls, ids.items(calls), "correlation")


def _by_window(calls: list[Event], window: Window | None, work: Sequence[Event], ids: _Ids) -> StepWork:
    launches, graphs = _launches(calls), _graphs(calls)
    if window is None or not launches:
        return StepWork(calls, unknown=NOT_SEPARATED if launches else NO_LAUNCH)
    own = {_id(call): call for call in calls if _id(call) in ids.plain}
    only = graphs[0] if len(graphs) == 1 else None
    items = [(own.get(_id(item), only), item) for item in work if window[0] < item["ts"] < window[1]]
    kernels = sum(item["cat"] == "kernel" for _, item in items)
    if kernels < len(launches):
        return StepWork(calls, unknown=f"{len(launches)} launches have only {kernels} kernels in the trace")
    return StepWork(calls, items, "window")


def _launches(calls: Iterable[Event]) -> list[Event]:
    return [call for call in calls if call["name"] in LAUNCH_CALLS]


def _graphs(calls: Iterable[Event]) -> list[Event]:
    return [call for call in calls if call["name"] in GRAPH_LAUNCH_CALLS]


def _can_start(call: Event, item: Event) -> bool:
    """Whether `call`, which is no graph launch, starts such work as `item`."""
    if item["cat"] == "kernel":
        return call["name"] in LAUNCH_CALLS - GRAPH_LAUNCH_CALLS
    return _copies(call)


def _copies(call: Event) -> bool:
    return "Memcpy" in call["name"] or "Memset" in call["name"]


def _id(event: Event) -> int:
    return int(event.get("args", {}).get("correlation", -1))
