"""A child process of the front: it ends when the front ends, and leaves Ctrl-C to it."""

from __future__ import annotations

import ctypes
import os
import signal


def die_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """End, by this signal, when the front ends, however it ends; and leave Ctrl-C to it."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(1, by)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        raise SystemExit("the front ended before its child had started")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
