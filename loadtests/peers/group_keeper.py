"""A program that runs a rival in a process group, and ends all of that group: `COMMAND …`.

It does so when the rival has ended, and when the driver has. The kernel sends its signal to a child whose
parent has ended, and not to what that child has started: the workers of a server would outlive a killed
comparison. This process stands between the two, and waits.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

DRIVER_ENDED = signal.SIGHUP
"""The signal for that, as the driver asks the kernel for it. SIGTERM is for the rival, to end in order."""

AWAITED = {DRIVER_ENDED, signal.SIGTERM, signal.SIGCHLD}


def _as_before() -> None:
    """In the rival: a blocked signal stays blocked in the program that is begun."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, AWAITED)


def main(command: list[str]) -> int:
    """Run `command` with this process's input and output; returns its exit code."""
    # Blocked and waited for, not handled: a handler would miss what comes just before the wait.
    signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    rival = subprocess.Popen(command, process_group=0, preexec_fn=_as_before)
    # Its code is taken last: until then its number, which is the group's, is nobody else's.
    while os.waitid(os.P_PID, rival.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        number = signal.sigwait(AWAITED)
        if number != signal.SIGCHLD:
            os.killpg(rival.pid, signal.SIGKILL if number == DRIVER_ENDED else number)
    # A rival whose input ends with the driver may be done before the kernel's signal is here.
    os.killpg(rival.pid, signal.SIGKILL)
    return rival.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
