"""A results folder: its name, the lock of the one sweep that writes to it, and a full disk."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import RUN_FILE, SERIES_FILE, RunError, read_run

REPOSITORY = Path(__file__).resolve().parents[2]


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def results_path(*words: str) -> Path:
    """`results/<UTC>-<words>`, which nothing makes here."""
    return Path("results") / "-".join((datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), *words))


def commit_name() -> str:
    """The commit of this code in a folder's name."""
    return (git_state()["commit"] or "nocommit")[:8]


def git_state() -> dict[str, Any]:
    """`commit` (12 digits), `dirty`, and a digest of the `changes` to tracked files, None without any.

    Where there is no repository: LAUNCHBOUND_COMMIT or None, and neither is known.
    """
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return {"commit": os.environ.get("LAUNCHBOUND_COMMIT"), "dirty": None, "changes": None}
    changed = _git("diff", "HEAD", "--binary")
    digest = hashlib.sha256(changed.encode()).hexdigest()[:12] if changed else None
    return {"commit": commit, "dirty": bool(changed), "changes": digest}


def _git(*arguments: str) -> str | None:
    """What git prints, or None where it is missing or fails."""
    command = ["git", "-C", str(REPOSITORY), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


LOCK_FILE = "sweep.lock"

RELEASED_WITHIN_SECONDS = 10.0
"""The load generator of a sweep that was killed holds the lock until it has ended too."""


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold `folder` for one sweep; yields a descriptor, to be inherited by whoever else writes rows.

    The lock (flock) ends with the last process that has the descriptor, so a kill leaves none behind. Raises
    RunError where another sweep holds it.
    """
    path = folder / LOCK_FILE
    deadline = monotonic() + RELEASED_WITHIN_SECONDS
    with path.open("a+", encoding="ascii") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                file.seek(0)
                owner = file.read().strip()
                if not owner or Path(f"/proc/{owner}").exists() or monotonic() > deadline:
                    raise RunError(
                        f"{folder} is being written by another sweep (process {owner or 'unknown'}): wait "
                        "until it has ended, or name another folder with --out"
                    ) from error
                sleep(0.05)
        if not os.fstat(file.fileno()).st_nlink:
            # Its last owner removed it between our opening and locking it: locked, it would hold nobody off.
            with locked(folder) as descriptor:
                yield descriptor
            return
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        try:
            yield file.fileno()
        finally:
            path.unlink(missing_ok=True)


class DiskFull(RuntimeError):
    """Nothing more can be written to a folder; the message says what is kept and how to go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"no space left for {folder}: {_kept(folder)}")


def _kept(folder: Path) -> str:
    """What is in `folder`, and the command that comes next: another one where the sweep is complete."""
    if (folder / SERIES_FILE).is_file():
        return f"what is measured is kept; free some space, then `launchbound sweep --resume {folder}`"
    rows = folder / ROWS_FILE
    if not rows.is_file() or not (folder / RUN_FILE).is_file():
        return "it holds no row yet; free some space, then run the same command again"
    count = rows.read_bytes().count(b"\n")
    verb, command = "go on with", "sweep --resume"
    if (folder.parent / SERIES_FILE).is_file():
        folder = folder.parent
    elif read_run(folder).complete:
        verb, command = "make the report with", "report"
    kept = f"the {count} rows written so far are kept; free some space"
    return f"{kept}, then {verb} `launchbound {command} {folder}`"


def is_full(error: OSError) -> bool:
    """Whether `error` says that there is no space: none left, over a quota, or over a file-size limit."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def disk_full_named(folder: Path) -> Iterator[None]:
    """Raise DiskFull where a write in the block finds no space."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            raise DiskFull(folder) from error
        raise
