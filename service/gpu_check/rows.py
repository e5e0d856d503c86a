"""The rows of a section: JSON lines, each on disk before the next is measured, read back as far as whole."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import msgspec

PATH_VARIABLE = "GPU_CHECK_ROWS"
"""The environment variable that tells a section where its rows go."""

Row = dict[str, Any]


class Rows:
    """Appends to the file of one section. Infinite values and NaN are written as null."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, **fields: object) -> None:
        """Append a row of `kind`; `at` is its instant, in Unix seconds. A crash after it loses no row."""
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode({"kind": kind, "at": time.time(), **fields}) + b"\n")


def own_rows() -> Rows:
    """The rows of the section that this process runs. Raises KeyError outside of `make gpu-check`."""
    return Rows(Path(os.environ[PATH_VARIABLE]))


def read_rows(path: Path) -> tuple[list[Row], int]:
    """The rows of a file, and the number of its lines that are none (cut off, or written by something else).

    No rows where there is no file: a section that died early has none.
    """
    if not path.exists():
        return [], 0
    rows: list[Row] = []
    garbage = 0
    for line in path.read_bytes().splitlines():
        try:
            row = msgspec.json.decode(line)
        except msgspec.DecodeError:
            row = None
        if isinstance(row, dict) and "kind" in row:
            rows.append(row)
        else:
            garbage += 1
    return rows, garbage
