"""Files of JSON lines that are appended to by a process that may be killed at any moment."""

from __future__ import annotations

from io import FileIO
from pathlib import Path


def append_line(file: FileIO, content: bytes) -> None:
    """Write `content` and a line end to an unbuffered file.

    Raises OSError where that is not possible as a whole, as on a full disk; its beginning may then stand at
    the end of the file, as after a kill.
    """
    line = content + b"\n"
    while line:
        line = line[file.write(line) :]


def cut_torn_line(path: Path) -> int:
    """Cut off what follows the last line end of `path`, where it exists; returns how many bytes that was."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with path.open("r+b") as file:
            file.truncate(whole)
    return len(content) - whole
