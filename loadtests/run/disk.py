"""What a full disk means to a sweep: what is written so far is kept, and it can be gone on with."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.run.rows import ROWS_FILE

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space left, quota exceeded, file-size limit exceeded."""


class DiskFull(RuntimeError):
    """Nothing more can be written to a results folder; the message says what is kept and how to go on."""

    def __init__(self, folder: Path) -> None:
        path = folder / ROWS_FILE
        count = path.read_bytes().count(b"\n") if path.is_file() else 0
        super().__init__(
            f"no space left for {folder}: the {count} rows written so far are kept; free some space, "
            f"then go on with `launchbound sweep --resume {folder}`"
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
