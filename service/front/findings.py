"""The newest finding of each study and its arguments, for whoever reads it again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A finding as JSON; `id` is its name in this life of the front, `arguments` what distinguishes it."""

    id: str
    study: str
    arguments: dict[str, str | int]
    created: str
    body: bytes


class Findings:
    """One finding per study and arguments, of which there are as many as modes, phases and batch buckets."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, tuple[str | int, ...]], KeptFinding] = {}
        self._made = 0

    def keep(self, study: str, arguments: dict[str, str | int], body: bytes) -> KeptFinding:
        """Keep a finding in the place of an earlier one of the same arguments."""
        self._made += 1
        created = datetime.now(UTC).isoformat(timespec="seconds")
        found = KeptFinding(f"{study}-{self._made}", study, arguments, created, body)
        place = study, tuple(arguments.values())
        self._newest.pop(place, None)
        self._newest[place] = found
        return found

    def newest(self, study: str, arguments: dict[str, str | int]) -> KeptFinding | None:
        """The finding of these arguments, given in the order in which they were kept."""
        return self._newest.get((study, tuple(arguments.values())))

    def by_id(self, identity: str) -> KeptFinding | None:
        """The finding of this id, unless a newer one has its place."""
        return next((found for found in self._newest.values() if found.id == identity), None)

    def __iter__(self) -> Iterator[KeptFinding]:
        """All, newest first."""
        return reversed(self._newest.values())
