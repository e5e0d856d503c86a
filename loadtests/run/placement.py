"""Keeps this process off the engine's cores, so that measuring does not disturb the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def off_cores(cpus: Iterable[int]) -> Iterator[list[int]]:
    """Exclude `cpus` from the affinity of this process's threads, unless none are left; yields its cores."""
    before = os.sched_getaffinity(0)
    allowed = before - set(cpus) or before
    _bind(allowed)
    try:
        yield sorted(allowed)
    finally:
        _bind(before)


def _bind(cpus: set[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:
            continue  # the thread ended since it was listed
