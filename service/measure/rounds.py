"""How measurements run: on cores of their own, in rounds of fresh seeded order: drift affects all alike."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from time import perf_counter_ns, thread_time_ns
from typing import TypeVar

from service.machine import pin
from service.statistics.intervals import Interval, exponential, median_interval

Key = TypeVar("Key")
Value = TypeVar("Value")
Log = Callable[[str], None]
"""Takes one line of progress, at least every few seconds."""


def in_rounds(
    variants: Mapping[Key, Callable[[], Value]], count: int, seed: str, log: Log | None = None
) -> dict[Key, list[Value]]:
    """What each variant returned in each of `count` rounds."""
    found: dict[Key, list[Value]] = {key: [] for key in variants}
    for number in range(count):
        if log is not None:
            log(f"round {number + 1} of {count}")
        keys = list(variants)
        Random(f"{seed}/{number}").shuffle(keys)
        for key in keys:
            found[key].append(variants[key]())
    return found


def paired_median_ratio(above: Sequence[float], below: Sequence[float]) -> Interval:
    """Median of the rounds' ratios `above / below`, with its order-statistic interval.

    Unlike a t interval it does not widen because one round was disturbed. Raises ValueError for unequal
    lengths or values that are not positive.
    """
    return exponential(median_interval([math.log(a / b) for a, b in zip(above, below, strict=True)]))


@contextmanager
def collector_off() -> Iterator[None]:
    """Within: no garbage is collected."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


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
