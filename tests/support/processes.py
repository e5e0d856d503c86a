"""What tests need of the machine: what is left of processes, and what is missing."""

from __future__ import annotations

import os
from typing import NoReturn

import psutil
import pytest


def gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for yet has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def descendants(pid: int) -> list[int]:
    """The process ids of all children, theirs included."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def without(reason: str) -> NoReturn:
    """Skip the test, or fail it where REQUIRE_ALL=1 is set: then nothing but GPU tests may be skipped."""
    if os.environ.get("REQUIRE_ALL") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
