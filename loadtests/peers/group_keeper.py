"""A program that runs a rival, and ends its whole process group when the driver has ended: `COMMAND …`.

The kernel sends its signal to a child whose parent has ended, and not to what that child has started: the
workers of a server would outlive a killed comparison. This process stands between the two, and waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

DRIVER_ENDED = signal.SIGHUP
"""The signal for that, as the driver asks the kernel for it. SIGTERM is for the rival, to end in order."""


def end_group(number: int, frame: object) -> None:
    """Kill all of this process group, this process included."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` with this process's input and output; returns its exit code."""
    # Handlers, unlike ignored signals, are not inherited; and before them nothing has been started yet.
    signal.signal(DRIVER_ENDED, end_group)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    return subprocess.call(command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
