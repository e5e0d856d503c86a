"""The device's own time of a step, without the profiler: calls queued back to back between two events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Protocol, Self

import torch

from service.records import DeviceTime, Phase
from service.statistics.intervals import Interval, median_interval

QUEUE_LENGTHS = (16, 8, 4, 2, 1)
"""Calls in a row that are tried, most first: the driver takes about a thousand launches ahead of the device.
"""

VISITS = 11
"""Of the queue per step: the interval of their median then leaves out the least and the greatest."""

LEAST_VISITS = 6
"""With fewer there is no 95 % interval of a median."""

ISSUED_CALLS = 4
"""Calls whose issuing is timed, to know for how long the device has to be held."""

HOLD_MARGIN = 2.0
"""The device is held for so many times what issuing the queue has taken."""

MOST_HOLD_SECONDS = 0.25


class TimingEvent(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Self) -> float: ...


class DeviceQueue(Protocol):
    """A device that runs what is issued to it in order, beside the host."""

    def event(self) -> TimingEvent: ...

    def hold(self, seconds: float) -> None:
        """Issue work that keeps the device busy for about `seconds` and reads no memory."""

    def synchronise(self) -> None: ...


class CudaQueue:
    """The current CUDA stream, held by torch's spinning kernel, whose rate of cycles is measured once."""

    PROBE_CYCLES = 2_000_000

    def __init__(self) -> None:
        self._cycles_per_second: float | None = None

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def hold(self, seconds: float) -> None:
        if self._cycles_per_second is None:
            self._cycles_per_second = self._measured_rate()
        self._spin(round(seconds * self._cycles_per_second))

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def _measured_rate(self) -> float:
        self._spin(self.PROBE_CYCLES)
        start, end = self.event(), self.event()
        start.record()
        self._spin(self.PROBE_CYCLES)
        end.record()
        end.synchronize()
        seconds: float = start.elapsed_time(end) / 1e3
        return self.PROBE_CYCLES / seconds

    def _spin(self, cycles: int) -> None:
        torch.cuda._sleep(cycles)


@dataclass(frozen=True, slots=True)
class QueueVisit:
    """Device seconds per call of one queue; `ahead`: all of it was issued before the device began with it."""

    seconds: float
    ahead: bool


def visit_queue(
    queue: DeviceQueue, call: Callable[[], object], calls: int, hold_seconds: float
) -> QueueVisit:
    """Run `calls` calls between two events behind a device that is held for `hold_seconds`.

    As long as the device has not reached the first event when the last call has returned, the whole queue lay
    ready, and the device ran it without ever waiting for the host.
    """
    start, end = queue.event(), queue.event()
    queue.synchronise()
    queue.hold(hold_seconds)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    ahead = not start.query()
    end.synchronize()
    return QueueVisit(start.elapsed_time(end) / 1e3 / calls, ahead)


def issue_seconds(
    queue: DeviceQueue, call: Callable[[], object], clock: Callable[[], int] = perf_counter_ns
) -> float:
    """Host seconds per call, of ISSUED_CALLS in a row to an idle device."""
    queue.synchronise()
    began = clock()
    for _ in range(ISSUED_CALLS):
        call()
    issued = (clock() - began) / 1e9 / ISSUED_CALLS
    queue.synchronise()
    return issued


@dataclass(frozen=True, slots=True)
class QueuedTime:
    """Device seconds per call, of queues of `queued` calls; `upper_bound`: the device may have waited."""

    seconds: Interval
    queued: int
    upper_bound: bool


def queued_time(
    queue: DeviceQueue, call: Callable[[], object], clock: Callable[[], int] = perf_counter_ns
) -> QueuedTime:
    """What `call`, a warmed step or a replayed graph, takes on the device.

    The longest queue is used that is issued before the device begins with it, and only its visits in which
    that held. Where too few hold, the result is that of all visits and an upper bound.
    """
    issued = issue_seconds(queue, call, clock)

    def visit(calls: int) -> QueueVisit:
        hold_seconds = min(HOLD_MARGIN * calls * issued, MOST_HOLD_SECONDS)
        return visit_queue(queue, call, calls, hold_seconds)

    calls = next((calls for calls in QUEUE_LENGTHS if visit(calls).ahead), QUEUE_LENGTHS[0])
    visits = [visit(calls) for _ in range(VISITS)]
    true = [one.seconds for one in visits if one.ahead]
    exact = len(true) >= LEAST_VISITS
    return QueuedTime(median_interval(true if exact else [one.seconds for one in visits]), calls, not exact)


def device_time(
    queue: DeviceQueue,
    call: Callable[[], object],
    phase: Phase,
    batch: int,
    clock: Callable[[], int] = perf_counter_ns,
) -> DeviceTime:
    """`queued_time` of `call`, a warmed step of `phase` in the bucket `batch`."""
    found = queued_time(queue, call, clock)
    return DeviceTime(
        phase=phase,
        batch=batch,
        seconds=found.seconds.value,
        low=found.seconds.low,
        high=found.seconds.high,
        samples=found.seconds.samples,
        queued=found.queued,
        upper_bound=found.upper_bound,
    )
