"""What each compilation took when the compile cache was empty, kept beside that cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

from service.step.kept_records import keep_record, read_record

FILE = "cold_starts.json"


class ColdStarts:
    """Seconds by name of a callable, for one model, dtype and set of sizes (`key`), in the cache's folder.

    A record of an older torch or of another processor is never read: their folder is another one.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}-{FILE}"
        self._seconds = read_record(self._file, dict[str, float]) or {}

    def recorded(self, name: str, cold_seconds: float | None) -> float | None:
        """What `name` took from an empty cache: `cold_seconds`, which is kept, or what was; None: unknown."""
        if cold_seconds is not None:
            # Read again: a second compiler adds to the same record.
            self._seconds |= (read_record(self._file, dict[str, float]) or {}) | {name: cold_seconds}
            keep_record(self._file, self._seconds)
        return self._seconds.get(name)
