"""The device's time per step without a profiler: steps queued behind each other between two events."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

import torch

CYCLES_PER_SECOND = 3e9
"""Above the clock of any GPU: a wait of so many cycles lasts at least a second per second wanted."""

MARGIN = 1.5


def queued_seconds(call: Callable[[], object], steps: int) -> float:
    """Device seconds per call of `call` on CUDA: `steps` of them, queued, between two events, over `steps`.

    The device is kept waiting until the host has queued them all, so that the host is no part of the time;
    gaps between kernels are. Holds where all launches of `steps` calls fit in the driver's queue (about a
    thousand): a replayed graph is one, a plain step some hundred.
    """
    torch.cuda.synchronize()
    began = perf_counter_ns()
    for _ in range(steps):
        call()
    queueing_seconds = (perf_counter_ns() - began) / 1e9
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(int(queueing_seconds * MARGIN * CYCLES_PER_SECOND))
    start.record()
    for _ in range(steps):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / steps
