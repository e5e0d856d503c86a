"""Processes that tests start and end: what is left of them."""

from __future__ import annotations

import psutil


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(pid: int) -> list[int]:
    """The process ids of all children, theirs included."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
