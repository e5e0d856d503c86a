"""Runs a measurement on the engine's cores, and counts the time in which it did not have them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns

from service.machine import pin


@contextmanager
def isolated(cpus: list[int]) -> Iterator[None]:
    """Within: every thread is pinned to `cpus`, and the garbage collector skips what exists already."""
    before = os.sched_getaffinity(0)
    gc.collect()
    gc.freeze()
    pin(cpus)
    try:
        yield
    finally:
        pin(sorted(before))


class OffCpuTime:
    """Wall time less CPU time of a thread that never blocks: its core ran something else."""

    def __init__(self) -> None:
        self._wall_ns = 0
        self._cpu_ns = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Within: this thread works and does not block."""
        wall_ns = perf_counter_ns()
        cpu_ns = thread_time_ns()
        try:
            yield
        finally:
            self._wall_ns += perf_counter_ns() - wall_ns
            self._cpu_ns += thread_time_ns() - cpu_ns

    def take_share(self) -> float:
        """The share of wall time off the CPU since the last call; 0 where nothing was counted."""
        share = 1 - self._cpu_ns / self._wall_ns if self._wall_ns else 0.0
        self._wall_ns = 0
        self._cpu_ns = 0
        return share
