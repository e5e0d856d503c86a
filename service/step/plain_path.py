"""Paths that the commands of torch's builds can hold, whose words it joins with blanks and splits again."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_PLAIN = re.compile(r"[\w@%+=./-]+")
"""What needs no quotes, neither in a command nor in the code that torch writes."""

_PLACES = ("/tmp", "/var/tmp", "/dev/shm")


def plain_path(path: Path) -> Path:
    """`path`, or a link to it where that has a blank, a quote or the like.

    The link is the same in every process, since torch looks for compiled code by the commands that made it.
    Raises ValueError, with the remedy, where no link can be made.
    """
    if _PLAIN.fullmatch(str(path)):
        return path
    for place in (*_PLACES, tempfile.gettempdir()):
        folder = Path(place, f"launchbound.links-{os.geteuid()}")
        link = folder / hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
        with suppress(OSError):
            if not _PLAIN.fullmatch(place) or not _private(folder):
                continue
            if not link.is_symlink():
                with suppress(FileExistsError):  # another process was faster
                    link.symlink_to(path)
            return link
    raise ValueError(
        f"{str(path)!a} has characters that torch's builds cannot take, and there is no folder for a "
        "link to it: free /tmp or set TMPDIR, or use a path of letters, digits, '-', '_' and '.' only"
    )


def _private(folder: Path) -> bool:
    """Whether `folder`, made where it is missing, is this user's alone: links in it name code to load."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return own and not status.st_mode & 0o077
