"""Which device work of a trace belongs to which step: by correlation id, else by its place on the device.

CUPTI gives a launch call and all that it started one correlation id. Before its version 13.1 Update 1 the ids
of graph launches and of their kernels are wrong from a process's second profiling session on (its release
notes), so ids count only while nothing in the trace contradicts them, and those of graphs only where a window
could have.

Else a step's work is what ran in its window on the device. The two clocks are never compared to find it: the
device's lies behind by microseconds, at the begin of a session by more (pytorch issue 192021). A window is
cut on the device's own clock, by the plain launches between two steps (a copy of tokens, say), whose ids are
right: on one stream what was launched before such a *separator* runs before it, and what was launched later
after it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from service.step.trace import DEVICE_WORK, GRAPH_LAUNCH_CALLS, LAUNCH_CALLS, RUNTIME, Event, Matched, inside

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
    """The CUDA calls of one step, and what they started on the device, in order of device time.

    Each item is the call and its work; the call is None where only the window tells whose work it is.
    `matched` None: which work is the step's is not known, for the reason in `unknown`; there are no items
    then.
    """

    calls: list[Event]
    items: list[tuple[Event | None, Event]] = field(default_factory=list)
    matched: Matched | None = None
    unknown: str | None = None

    @property
    def kernels(self) -> list[Event]:
        """The kernels among the items; none where they are not known."""
        return [item for _, item in self.items if item["cat"] == "kernel"]


@dataclass(frozen=True, slots=True)
class _Ids:
    """What correlation ids say: by id its call and the work that it started.

    `plain` are the ids of one call that is no graph launch and of one piece of work that it can have started.
    """

    calls: dict[int, Event]
    started: dict[int, list[Event]]
    plain: set[int]

    @classmethod
    def of(cls, calls: Iterable[Event], work: Iterable[Event]) -> _Ids:
        by_id = {_id(call): call for call in calls}
        started: dict[int, list[Event]] = defaultdict(list)
        for item in work:
            started[_id(item)].append(item)
        plain = {
            number
            for number, items in started.items()
            if len(items) == 1 and number in by_id and _can_start(by_id[number], items[0])
        }
        return cls(by_id, dict(started), plain)

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
        """What `calls` started, in order of device time."""
        found: list[tuple[Event | None, Event]] = [
            (call, item) for call in calls for item in self.started.get(_id(call), [])
        ]
        return sorted(found, key=lambda pair: float(pair[1]["ts"]))


def match_work(events: Sequence[Event], marks: Sequence[Event], way: Matched | None = None) -> list[StepWork]:
    """The work of each of `marks`, which are in order of time, from all complete events of their trace.

    `way` is for probes that compare both; None: by ids where they are proved, else by windows.
    """
    calls = [event for event in events if event.get("cat") in RUNTIME]
    work = sorted((e for e in events if e.get("cat") in DEVICE_WORK), key=lambda item: float(item["ts"]))
    within = [inside(calls, mark) for mark in marks]
    if not work:
        return [StepWork(own, unknown=NOTHING_RECORDED) for own in within]
    ids = _Ids.of(calls, work)
    windows = _windows(marks, ids)
    if way is None:
        trusted = ids.consistent and _proved(within, windows, ids)
        way = "correlation" if trusted else "window"
    if way == "correlation":
        return [_by_id(own, ids) for own in within]
    return [_by_window(own, window, work, ids) for own, window in zip(within, windows, strict=True)]


def busy_microseconds(work: Iterable[Event]) -> float:
    """The time in which at least one of `work` ran, the union: streams that overlap are counted once."""
    busy = 0.0
    until = -math.inf
    for item in sorted(work, key=lambda item: float(item["ts"])):
        end = item["ts"] + item["dur"]
        busy += max(0.0, end - max(item["ts"], until))
        until = max(until, end)
    return busy


def _windows(marks: Sequence[Event], ids: _Ids) -> list[tuple[float, float] | None]:
    """Per step the device's times that its work lies between; None where nothing cuts it out.

    What was started last before the step and first after it must both be separators: work of which that is
    not known could lie in the window.
    """
    gaps: list[list[Event]] = [[] for _ in range(len(marks) + 1)]
    for call in sorted(filter(_starts_work, ids.calls.values()), key=lambda call: float(call["ts"])):
        if not any(mark["ts"] <= call["ts"] < mark["ts"] + mark["dur"] for mark in marks):
            gaps[sum(mark["ts"] <= call["ts"] for mark in marks)].append(call)
    found: list[tuple[float, float] | None] = []
    for before, after in pairwise(gaps):
        begin = ids.separates(before[-1]) if before else None
        # Behind the last step there may be nothing at all.
        end = ids.separates(after[0]) if after else (math.inf if after is gaps[-1] else None)
        found.append(None if begin is None or end is None else (begin, end))
    return found


def _proved(within: Sequence[list[Event]], windows: Sequence[tuple[float, float] | None], ids: _Ids) -> bool:
    """Whether all work lies by its id in the step that it ran in; ids that are off by one launch do not.

    Where no step that launches a graph has a window, nothing could have told that its ids are wrong.
    """
    seen = [(own, window) for own, window in zip(within, windows, strict=True) if window is not None]
    if any(map(_graphs, within)) and not any(_graphs(own) for own, _ in seen):
        return False
    return all(window[0] < item["ts"] < window[1] for own, window in seen for _, item in ids.items(own))


def _by_id(calls: list[Event], ids: _Ids) -> StepWork:
    launches = _launches(calls)
    lost = sum(_id(call) not in ids.started for call in launches)
    if lost:
        return StepWork(calls, unknown=f"{lost} of {len(launches)} launches have no kernel in the trace")
    return (
        StepWork(calls, ids.items(calls), "correlation") if launches else StepWork(calls, unknown=NO_LAUNCH)
    )


def _by_window(
    calls: list[Event], window: tuple[float, float] | None, work: Sequence[Event], ids: _Ids
) -> StepWork:
    launches = _launches(calls)
    if window is None or not launches:
        return StepWork(calls, unknown=NO_LAUNCH if not launches else NOT_SEPARATED)
    graphs = _graphs(calls)
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


def _starts_work(call: Event) -> bool:
    return call["name"] in LAUNCH_CALLS or _copies(call)


def _copies(call: Event) -> bool:
    return "Memcpy" in call["name"] or "Memset" in call["name"]


def _id(event: Event) -> int:
    """The correlation id; -1 where the event has none."""
    return int(event.get("args", {}).get("correlation", -1))
