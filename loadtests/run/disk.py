"""What a full disk means to a command: what is written so far is kept, and what to do once there is space."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.run.rows import ROWS_FILE
from loadtests.run.run_file import RUN_FILE, read_run
from loadtests.run.series_file import is_series

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
