"""Starting Ray on a busy machine: its fixed 30 s for a node's start may pass."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import psutil

Started = TypeVar("Started")

TRIES = 4
_TOO_LATE = "timed out during startup"
"""Ray raises an Exception with these words, of no class of its own."""


class TooBusy(RuntimeError):
    """Ray did not start in any of TRIES tries; the message has the remedy."""


def patiently(start: Callable[[], Started]) -> Started:
    """What `start` returns, which starts a node of Ray, tried again where that takes too long.

    What a try has left running is killed. Raises TooBusy in the end, and whatever else `start` raises.
    """
    for _ in range(TRIES):
        before = {child.pid for child in psutil.Process().children()}
        try:
            return start()
        except Exception as error:
            if _TOO_LATE not in str(error):
                raise
            _kill([child for child in psutil.Process().children() if child.pid not in before])
    raise TooBusy(
        f"Ray did not start within its 30 s, {TRIES} times: the machine is too busy; try again when it is not"
    )


def _kill(processes: list[psutil.Process]) -> None:
    """These, and what they have started."""
    with_theirs = [*processes, *(child for one in processes for child in one.children(recursive=True))]
    for process in with_theirs:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(with_theirs)
