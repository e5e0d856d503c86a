"""`events.jsonl`: what the load generator said of each part of a sweep, as it said it, requests left out.

It is appended to because a sweep that is killed writes no `run.json` at its end.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import msgspec

from loadtests.run.assignment import KeptEvent
from loadtests.run.lines import append_line
from loadtests.run.rows import RowsError

EVENTS_FILE = "events.jsonl"


class PartEvent(msgspec.Struct, frozen=True):
    """An event of part `part`."""

    part: int
    event: KeptEvent


class EventWriter:
    """Appends the events of one part; each is in the file before the call returns."""

    def __init__(self, folder: Path, part: int) -> None:
        self._file = (folder / EVENTS_FILE).open("ab", buffering=0)
        self._part = part

    def write(self, event: KeptEvent) -> None:
        """Append `event`. Raises OSError, as where the disk is full."""
        append_line(self._file, msgspec.json.encode(PartEvent(self._part, event)))

    def __enter__(self) -> EventWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_events(folder: Path) -> list[PartEvent]:
    """The events of a folder in their order, a truncated last line left out; none where it has no file.

    Raises RowsError for any other line that is no event.
    """
    path = folder / EVENTS_FILE
    if not path.exists():
        return []
    decoder = msgspec.json.Decoder(PartEvent)
    events = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], start=1):
        try:
            events.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise RowsError(f"{path}, line {number}: {error}") from error
    return events
