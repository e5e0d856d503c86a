"""Which cores the processes run on: the engine's are its own, so that nothing else disturbs it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

Share = Literal["all", "lower"]
"""Of a machine's cores: all of them, or the lower half."""


def share_cpus(share: Share, available: Iterable[int] | None = None) -> list[int]:
    """The cores of a whole service: all that this process may use, or the `lower` half of them.

    The engine of another service on this machine, placed by default, has the upper half. Of two cores the
    lower half is the first; a single one is shared.
    """
    usable = sorted(os.sched_getaffinity(0) if available is None else available)
    return usable if share == "all" else usable[: max(1, len(usable) // 2)]


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


@contextmanager
def children_on(cores: Iterable[int]) -> Iterator[None]:
    """Within: this thread may use `cores`, and so may a child that it starts, which inherits its affinity."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
