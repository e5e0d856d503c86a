"""Begins a section's process: `python -m service.gpu_check.begin PARENT-PID ARGUMENTS`, of the interpreter.

Ties the process to the runner's life, then becomes `python ARGUMENTS`: the tie outlives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Does not return. Raises SystemExit where the runner has ended already."""
    parent, *command = arguments
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # Its pid was handed down: asked for here, it could already be that of whoever inherits orphans.
    if os.getppid() != int(parent):
        raise SystemExit("gpu-check ended before this section had started")
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(sys.argv[1:])
