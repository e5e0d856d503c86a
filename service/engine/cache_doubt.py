"""Whether a compilation that failed may be the fault of the compile cache, which is then emptied, once."""

from __future__ import annotations

import hashlib
from pathlib import Path

from service.step.kept_records import keep_record, read_record


class CacheBroken(Exception):
    """A mode failed on compiled code from before this process, where it has never failed without."""


class CacheDoubt:
    """The compile cache of `folder` as this process found it; `key` names what it compiles.

    A library that is cut off shows in many ways (it does not load, a compiler is tried with other options, a
    header is missing), and torch remembers what it tried until its process ends. So the rule is not about
    errors: what fails on code from before is tried again in a new process, from an empty cache. What fails
    there too is recorded, so that no later start empties the cache for it.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._had_code = any(entry.is_dir() for entry in folder.iterdir())
        self._file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-failed.json"
        self._failed = read_record(self._file, list[str]) or []

    def failed(self, mode: str) -> None:
        """`mode` could not be compiled. Raises CacheBroken where the cache may be why."""
        if mode in self._failed:
            return
        if self._had_code:
            raise CacheBroken(f"mode {mode} failed on compiled code of an earlier start")
        self._failed.append(mode)
        keep_record(self._file, self._failed)

    def succeeded(self, mode: str) -> None:
        """`mode` was compiled."""
        if mode in self._failed:
            self._failed.remove(mode)
            keep_record(self._file, self._failed)
