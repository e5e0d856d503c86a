"""A results folder: the commit in its name, the lock of the one sweep that writes to it, a full disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import RUN_FILE, RunError, is_series, read_run

REPOSITORY = Path(__file__).resolve().parents[2]


def git_state(folder: Path = REPOSITORY) -> dict[str, Any]:
    """`commit` (12 digits), `dirty`, and a digest of the `changes` to tracked files, None without any.

    Where there is no repository: LAUNCHBOUND_COMMIT or None, and neither is known.
    """
    commit = _run("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return {"commit": os.environ.get("LAUNCHBOUND_COMMIT"), "dirty": None, "changes": None}
    changed = _run("git", "-C", str(folder), "diff", "HEAD", "--binary")
    digest = hashlib.sha256(changed.encode()).hexdigest()[:12] if changed else None
    return {"commit": commit, "dirty": bool(changed), "changes": digest}


def _run(*command: str) -> str | None:
    """What `command` prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


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


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space left, quota exceeded, file-size limit exceeded."""


class DiskFull(RuntimeError):
    """Nothing more can be written to a folder; the message says what is kept and how to go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no space left for {folder}: {_kept(folder)}")


def _kept(folder: Path) -> str:
    """What stands in `folder`, and the command that comes next: another one where the sweep is complete."""
    if is_series(folder):
        return (
            "what its runs have measured is kept; free some space, then go on with "
            f"`launchbound sweep --resume {folder}`"
        )
    rows = folder / ROWS_FILE
    if not rows.is_file() or not (folder / RUN_FILE).is_file():
        return "it holds no row yet; free some space, then run the same command again"
    complete = read_run(folder).complete
    command = f"report {folder}" if complete else f"sweep --resume {folder}"
    count = rows.read_bytes().count(b"\n")
    return (
        f"the {count} rows written so far are kept; free some space, then "
        f"{'make the report with' if complete else 'go on with'} `launchbound {command}`"
    )


def is_full(error: OSError) -> bool:
    """Whether `error` says that there is no space to write to."""
    return error.errno in _FULL


@contextmanager
def disk_full_named(folder: Path) -> Iterator[None]:
    """Have a write of the block that finds no space raise DiskFull."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(folder) from error
        raise
