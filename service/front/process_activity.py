"""Whether a process and its descendants do anything, by the kernel's accounts in /proc."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")

_AT_WORK = frozenset("RDt")
"""Runs or waits for a core, waits for a disk, or is held by a debugger."""

_STATE, _CPU_TIMES = 0, slice(11, 15)
"""Places behind the name in /proc/PID/stat: state; user and system time, also of children that have ended."""


@dataclass(frozen=True, slots=True)
class Activity:
    """`cpu_ticks` of all of them so far; `at_work`: one is, or may be; `stopped`: the process itself is, by
    SIGSTOP.
    """

    cpu_ticks: int
    at_work: bool
    stopped: bool


def activity(pid: int) -> Activity | None:
    """What process `pid` and its descendants do now; None where that cannot be read."""
    if not _children_are_listed():
        return None
    try:
        stats = [_stat(one) for one in _with_descendants(pid)]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # one ended between two looks: the next look tells
    return Activity(
        cpu_ticks=sum(int(ticks) for stat in stats for ticks in stat[_CPU_TIMES]),
        at_work=any(stat[_STATE] in _AT_WORK for stat in stats),
        stopped=stats[0][_STATE] == "T",
    )


def _children_are_listed() -> bool:
    """Whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
    return (PROC / f"self/task/{threading.get_native_id()}/children").exists()


def _stat(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for task in (PROC / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _with_descendants(int(child))
