"""What the system around a command refuses it, told in one sentence with the remedy."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from service.cli.options import EXIT_BAD_INPUT, EXIT_MACHINE

_OF_A_PATH = frozenset(
    {
        errno.EACCES, errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT,
        errno.ENOTDIR, errno.EPERM, errno.EROFS,
    }
)  # fmt: skip
"""A file or folder is not what it must be; all other errors are of the machine."""

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or ask for a larger quota",
    errno.EFBIG: "raise the limit of a file's size (`ulimit -f`)",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENOMEM: "free some memory",
    errno.EAGAIN: "raise the limit of processes (`ulimit -u`)",
}


@contextmanager
def any_system() -> Iterator[None]:
    """Run a command in the block.

    Ends with exit code 2 where a path is at fault, and with 4 where the machine is, also for output that
    cannot be written. What a terminal's encoding lacks is replaced.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        _end_with(error)


def _end_with(error: OSError) -> NoReturn:
    """End with what `error` means to a user."""
    if error.errno == errno.EPIPE:
        _drop_output()
        raise SystemExit(EXIT_MACHINE) from None  # who closed it wants no more words
    said = error.strerror or str(error)
    if error.filename is not None:
        said = f"{error.filename}: {said}"
    if error.errno in _OF_A_PATH and error.filename is not None:
        _end(f"{said}: name another place, or give this user the right to it", EXIT_BAD_INPUT)
    _end(f"{said}: {_REMEDIES.get(error.errno or 0, 'mend that')}, then run this again", EXIT_MACHINE)


def _end(message: str, code: int) -> NoReturn:
    _drop_output()
    print(f"launchbound: {message}", file=sys.stderr, flush=True)
    raise SystemExit(code) from None


def _drop_output() -> None:
    """Have what could not be written go nowhere, else the interpreter tries again as it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
