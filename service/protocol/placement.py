"""Which cores the processes run on: the engine's are its own, so that nothing else disturbs it."""

from __future__ import annotations

import os
from collections.abc import Iterable


def engine_cpus(wanted: list[int] | None, available: Iterable[int] | None = None) -> list[int]:
    """Cores for the engine: `wanted`, else the upper half of those this process may use (of two: the last).

    Raises ValueError, naming the cores there are, where `wanted` holds a core that is not available.
    """
    usable = sorted(os.sched_getaffinity(0) if available is None else available)
    if wanted is None:
        return usable[len(usable) // 2 :]
    missing = sorted(set(wanted) - set(usable))
    if missing or not wanted:
        raise ValueError(f"engine_cpus {wanted}: this process may use cores {usable}; choose among these")
    return sorted(set(wanted))


def front_cpus(
    wanted: list[int] | None, engine: list[int] | None, available: Iterable[int] | None = None
) -> list[int]:
    """Cores for the front: `wanted`, else those that the engine leaves; all where it leaves none."""
    if wanted is not None:
        return wanted
    usable = sorted(os.sched_getaffinity(0) if available is None else available)
    engines = engine_cpus(engine, usable)
    return [core for core in usable if core not in engines] or usable


def threads_now() -> set[int]:
    """Ids of this process's threads."""
    return {int(name) for name in os.listdir("/proc/self/task")}


def pin(cpus: list[int]) -> None:
    """Bind every thread of this process to `cpus`."""
    for thread in threads_now():
        try:
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:
            # A thread that ended between the listing and now has no core to be bound to.
            continue
