"""What a study leaves behind: its finding, its files within bounds, and what it took."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Protocol

FOLDER_PREFIX = "launchbound-study-"
"""Of the names of private folders for what studies write."""

MOST_FILE_BYTES = 64 * 2**20
"""Of one file: a trace of two steps has some 100 KB, a snapshot some KB per allocation."""


class Heard(Protocol):
    """Takes what a study does now; `done` of `total` alike parts are finished, where there are such."""

    def __call__(self, text: str, done: int | None = None, total: int | None = None, /) -> None:
        """Take it."""


def unheard(text: str, done: int | None = None, total: int | None = None, /) -> None:
    """Where nobody asked for progress."""


@dataclass(frozen=True, slots=True)
class StudyResult:
    """A finding as JSON, and what it took in `seconds`: the `wait` for the engine, the `start` of the process
    where there was none, the `study` itself, and how long of these two it was `suspended` for requests.

    `files` are what it wrote, by name; `files_left_out` those over the bound, with the reason.
    """

    body: bytes
    seconds: dict[str, float]
    files: dict[str, bytes]
    files_left_out: dict[str, str]


@asynccontextmanager
async def folder_for_files(wanted: bool) -> AsyncIterator[Path | None]:
    """A private folder that is gone afterwards; None where no files are wanted."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix=FOLDER_PREFIX, ignore_cleanup_errors=True) as folder:
        held = os.open(folder, os.O_RDONLY)
        flock(held, LOCK_EX)
        try:
            yield Path(folder)
        finally:
            os.close(held)


def remove_abandoned_folders() -> None:
    """Remove the folders of fronts that were killed during a study: nobody holds their locks any more.

    A lock, not the name of a process: containers that share the folder for temporary files do not share pids.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # it is another user's, in use, or gone already
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                flock(held, LOCK_EX | LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(held)


async def read_files(folder: Path | None) -> tuple[dict[str, bytes], dict[str, str]]:
    """The files in `folder` by name, and those over MOST_FILE_BYTES, each with what to do."""
    return ({}, {}) if folder is None else await asyncio.to_thread(_read, folder)


def _read(folder: Path) -> tuple[dict[str, bytes], dict[str, str]]:
    files: dict[str, bytes] = {}
    left_out: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        size = path.stat().st_size
        if size <= MOST_FILE_BYTES:
            files[path.name] = path.read_bytes()
        else:
            left_out[path.name] = (
                f"{path.name} has {size} bytes, over the bound of {MOST_FILE_BYTES}, and was not kept: "
                "name one mode, or run `launchbound anatomy` with --out"
            )
    return files, left_out
