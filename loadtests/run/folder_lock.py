"""A results folder is written by one sweep at a time: a lock that ends with the processes that hold it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from loadtests.run.run_file import RunError

LOCK_FILE = "sweep.lock"

RELEASED_WITHIN_SECONDS = 10.0
"""The load generator of a sweep that was killed holds the lock until it has ended too."""

_POLL_SECONDS = 0.05


class FolderInUse(RunError):
    """Another sweep writes to the folder; the message has its process id."""


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold `folder` for one sweep; gives a descriptor, to be inherited by whoever else writes rows.

    The lock (flock) ends with the last process that has the descriptor, so a kill leaves none behind. Raises
    FolderInUse where another sweep holds it.
    """
    path = folder / LOCK_FILE
    deadline = monotonic() + RELEASED_WITHIN_SECONDS
    while (descriptor := _try(path)) is None:
        owner = _owner(path)
        if owner is None or monotonic() > deadline or _runs(owner):
            raise FolderInUse(
                f"{folder} is being written by another sweep (process {owner or 'unknown'}): wait until it "
                "has ended, or name another folder with --out"
            )
        sleep(_POLL_SECONDS)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        yield descriptor
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _try(path: Path) -> int | None:
    """A descriptor of the locked file; None where another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last owner may have removed the file between our opening and locking it.
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _owner(path: Path) -> int | None:
    """The process id in the file; None where it is not written yet."""
    text = path.read_text(encoding="ascii").strip() if path.exists() else ""
    return int(text) if text.isdigit() else None


def _runs(process: int) -> bool:
    return Path(f"/proc/{process}").exists()
