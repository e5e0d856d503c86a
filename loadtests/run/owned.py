"""Command lines of children that end with this process, however that ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from loadtests.run.environment import REPOSITORY

STARTER = REPOSITORY / "service" / "protocol" / "parent_death.py"
"""A program that becomes another one, which then ends when the process that started it does."""


def owned(command: Sequence[str], by: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command line that runs `command`, its program by its path; `by` is sent it when this process ends.

    Start it from a thread that lives as long as the child may: the kernel watches the starting *thread*.
    """
    return [sys.executable, "-I", "-S", str(STARTER), str(os.getpid()), str(int(by)), *command]
