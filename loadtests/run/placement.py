"""Keeps this process off the engine's cores, so that watching does not disturb what is watched."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def off_cores(cpus: Iterable[int]) -> Iterator[list[int]]:
    """Within: all threads of this process keep off `cpus`, where others are left; yields its cores."""
    before = os.sched_getaffinity(0)
    rest = before - set(cpus) or before
    _bind(rest)
    try:
        yield sorted(rest)
    finally:
        _bind(before)


def _bind(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:
            continue  # it ended since it was listed
