"""A child process that ends with its parent, however that ends, from before its own first import.

`owned(COMMAND)` is the command line that starts one: run as a program, this file asks the kernel for the
signal, makes sure that the parent is still there, and becomes COMMAND.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1


def owned(command: Sequence[str], by: signal.Signals = signal.SIGTERM) -> list[str]:
    """The command line that runs `command` as a child of this process, and sends it `by` when this one ends.

    The kernel watches the starting *thread*, which must live as long as the child may. The child ignores
    SIGINT: Ctrl-C is the parent's to handle. Raises FileNotFoundError where there is no such program.
    """
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(f"no program {command[0]}")
    starter = [sys.executable, "-I", "-S", os.path.abspath(__file__)]
    return [*starter, str(os.getpid()), str(int(by)), program, *command[1:]]


def main(arguments: Sequence[str]) -> None:
    """Become the command that follows the parent's pid and the signal's number in `arguments`."""
    parent, by, *command = arguments
    # Both outlive exec. The pid is handed down because a parent that died before this line has been replaced.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(by)) != 0:
        raise SystemExit(f"launchbound: prctl(PR_SET_PDEATHSIG) failed: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        raise SystemExit("launchbound: the parent ended before its child had started")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
