"""Whether a process and its descendants do anything, by the kernel's accounts in /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

PROC = Path("/proc")

_AT_WORK = frozenset("RDt")
"""Runs or waits for a core, waits for a disk, or is held by a debugger."""

_STATE, _MAJOR_FAULTS, _OWN_TIMES, _CPU_TIMES = 0, 9, slice(11, 13), slice(11, 15)
"""Places behind the name in /proc/PID/stat: state; page faults that waited for a disk; user and system time,
of its own, and with that of children that have ended.
"""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Activity:
    """`cpu_ticks` of all of them so far; `at_work`: one is, or may be; `stopped`: the process itself is, by
    SIGSTOP. Of the process alone: `thread_ticks`, CPU time by thread, and its `major_faults`.
    """

    cpu_ticks: int
    at_work: bool
    stopped: bool
    thread_ticks: Mapping[int, int] = field(default_factory=dict)
    major_faults: int = 0


def activity(pid: int) -> Activity | None:
    """What process `pid` and its descendants do now; None where that cannot be read."""
    if not _children_are_listed():
        return None
    try:
        stats = [_stat(PROC / str(one)) for one in _with_descendants(pid)]
        threads = {int(task.name): _stat(task) for task in (PROC / str(pid) / "task").iterdir()}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None  # one ended between two looks: the next look tells
    return Activity(
        cpu_ticks=sum(_ticks(stat, _CPU_TIMES) for stat in stats),
        at_work=any(stat[_STATE] in _AT_WORK for stat in stats),
        stopped=stats[0][_STATE] == "T",
        thread_ticks={thread: _ticks(stat, _OWN_TIMES) for thread, stat in threads.items()},
        major_faults=int(stats[0][_MAJOR_FAULTS]),
    )


def _children_are_listed() -> bool:
    """Whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
    return (PROC / f"self/task/{threading.get_native_id()}/children").exists()


def _stat(folder: Path) -> list[str]:
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _ticks(stat: list[str], times: slice) -> int:
    return sum(map(int, stat[times]))


def _with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for task in (PROC / str(pid) / "task").iterdir():
        for child in (task / "children").read_text().split():
            yield from _with_descendants(int(child))
