"""The device's own time of a step, without the profiler: calls queued back to back between two events."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import NamedTuple

import torch

from service.statistics.intervals import Interval, median_interval

QUEUE_LENGTHS = (16, 8, 4, 2, 1)
"""Calls in a row that are tried: the driver takes about a thousand launches ahead of the device."""

SAMPLES = 11
"""Queues per step: the interval of their median then leaves out the least and the greatest."""

LEAST_SAMPLES = 6
"""With fewer there is no 95 % interval of a median."""

ISSUED_CALLS = 4
"""Calls whose issuing is timed, to know for how long the device has to be held."""

HOLD_MARGIN = 2.0
"""The device is held for so many times what issuing the queue has taken."""

MOST_HOLD_SECONDS = 0.25


class CudaQueue:
    """The current CUDA stream, held by torch's spinning kernel, whose rate of cycles is measured once."""

    PROBE_CYCLES = 2_000_000

    def __init__(self) -> None:
        self._cycles_per_second: float | None = None

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def synchronise(self) -> None:
        torch.cuda.synchronize()

    def hold(self, seconds: float) -> None:
        """Issue work that keeps the device busy for about `seconds` and reads no memory."""
        if self._cycles_per_second is None:
            self._cycles_per_second = self._measured_rate()
        torch.cuda._sleep(round(seconds * self._cycles_per_second))

    def _measured_rate(self) -> float:
        torch.cuda._sleep(self.PROBE_CYCLES)
        start, end = self.event(), self.event()
        start.record()
        torch.cuda._sleep(self.PROBE_CYCLES)
        end.record()
        end.synchronize()
        seconds: float = start.elapsed_time(end) / 1e3
        return self.PROBE_CYCLES / seconds


class QueueSample(NamedTuple):
    """Device seconds per call of one queue; `ahead`: all of it was issued before the device began with it."""

    seconds: float
    ahead: bool


def sample_queue(
    queue: CudaQueue, call: Callable[[], object], calls: int, hold_seconds: float
) -> QueueSample:
    """Run `calls` calls between two events behind a device that is held for `hold_seconds`.

    If the device has not reached the first event when the last call returns, the whole queue was ready, and
    the device ran it without waiting for the host.
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
    return QueueSample(start.elapsed_time(end) / 1e3 / calls, ahead)


def issue_seconds(
    queue: CudaQueue, call: Callable[[], object], clock: Callable[[], int] = perf_counter_ns
) -> float:
    """Host seconds per call, of ISSUED_CALLS in a row to an idle device."""
    queue.synchronise()
    began = clock()
    for _ in range(ISSUED_CALLS):
        call()
    issued = (clock() - began) / 1e9 / ISSUED_CALLS
    queue.synchronise()
    return issued


class QueuedTime(NamedTuple):
    """Device seconds per call, of queues of `queued` calls; `upper_bound`: the device may have waited."""

    seconds: Interval
    queued: int
    upper_bound: bool


def queued_time(
    queue: CudaQueue, call: Callable[[], object], clock: Callable[[], int] = perf_counter_ns
) -> QueuedTime:
    """What `call`, a warmed step or a replayed graph, takes on the device.

    The longest queue is used that is issued before the device begins with it, and only its samples in which
    that held. Where too few hold, the result is that of all samples and an upper bound.
    """
    issued = issue_seconds(queue, call, clock)

    def sample(calls: int) -> QueueSample:
        return sample_queue(queue, call, calls, min(HOLD_MARGIN * calls * issued, MOST_HOLD_SECONDS))

    calls = next((calls for calls in QUEUE_LENGTHS if sample(calls).ahead), QUEUE_LENGTHS[0])
    samples = [sample(calls) for _ in range(SAMPLES)]
    true = [one.seconds for one in samples if one.ahead]
    exact = len(true) >= LEAST_SAMPLES
    return QueuedTime(median_interval(true if exact else [one.seconds for one in samples]), calls, not exact)
