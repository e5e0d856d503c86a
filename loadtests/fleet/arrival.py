"""A results folder on its way from a node: pieces of a zip file, and the folder once all are there."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

from loadtests.fleet.node import SWEEP_LOG


class Arrival:
    """Takes in the pieces of the folder `name` of `out`; nothing is called so before it is whole."""

    def __init__(self, out: Path, name: str) -> None:
        self._folder = out / name
        self._archive = out / f".{name}.zip"
        self._unpacked = out / f".{name}.new"
        self._archive.write_bytes(b"")

    def add(self, data: bytes) -> None:
        """Take in the next piece."""
        with self._archive.open("ab") as file:
            file.write(data)

    def unpack(self) -> Path:
        """Unpack what has come, in place of what the task has left before; returns the folder."""
        shutil.rmtree(self._unpacked, ignore_errors=True)
        with zipfile.ZipFile(self._archive) as packed:
            packed.extractall(self._unpacked)
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._unpacked.rename(self._folder)
        self._archive.unlink()
        return self._folder

    def drop(self) -> None:
        """Forget what has come."""
        self._archive.unlink(missing_ok=True)
        shutil.rmtree(self._unpacked, ignore_errors=True)


def last_words(folder: Path) -> str:
    """Why a sweep ended, from what it printed: its own last line, but for the JSON document that ends it."""
    log = folder / SWEEP_LOG
    lines = log.read_text(errors="replace").strip().splitlines() if log.is_file() else []
    said = [line.strip() for line in lines if line.strip() and not _is_document(line)]
    return (said or ["it said nothing"])[-1]


def _is_document(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False
