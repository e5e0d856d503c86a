"""Ends a child process with the front (PR_SET_PDEATHSIG), and leaves Ctrl-C to the front."""

from __future__ import annotations

import ctypes
import os
import signal


def die_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send `by` to this process when the front ends, however it ends; ignore SIGINT."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, by)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        raise SystemExit("the front ended before its child had started")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
