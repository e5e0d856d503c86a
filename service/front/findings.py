"""The newest findings, bounded in number and bytes, for whoever reads them again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from service.front.errors import NotFound

MOST_FINDINGS = 200
MOST_BYTES = 128 * 2**20
"""Of all findings with their files: an answer of the largest kind has a hundred KB, a trace some more."""

_NUMBER = re.compile(r"[a-z-]+-(\d{1,9})")


@dataclass(frozen=True, slots=True)
class KeptFinding:
    """A finding as JSON; `id` is its name in this life of the front, `arguments` what distinguishes it.

    `files` are what the study wrote, by name; `files_left_out` those that were not kept, with the reason.
    """

    id: str
    study: str
    arguments: dict[str, Any]
    created: str
    body: bytes
    files: Mapping[str, bytes] = field(default_factory=dict)
    files_left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Size of the finding and its files."""
        return len(self.body) + sum(map(len, self.files.values()))


class Findings:
    """At most `most` findings of `most_bytes` together; the oldest are given up, never the newest one."""

    def __init__(self, most: int = MOST_FINDINGS, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: dict[str, KeptFinding] = {}
        self._made = 0
        self.given_up = 0

    def keep(
        self,
        study: str,
        arguments: dict[str, Any],
        body: bytes,
        files: Mapping[str, bytes] | None = None,
        files_left_out: Mapping[str, str] | None = None,
    ) -> KeptFinding:
        """Keep a finding, under a new id."""
        self._made += 1
        created = datetime.now(UTC).isoformat(timespec="seconds")
        identity = f"{study}-{self._made}"
        found = KeptFinding(identity, study, arguments, created, body, files or {}, files_left_out or {})
        self._kept[identity] = found
        size = sum(kept.size_bytes for kept in self._kept.values())
        while len(self._kept) > 1 and (len(self._kept) > self._most or size > self._most_bytes):
            oldest = self._kept.pop(next(iter(self._kept)))
            size -= oldest.size_bytes
            self.given_up += 1
        return found

    def newest(self, study: str, arguments: Mapping[str, Any]) -> KeptFinding | None:
        """The newest finding of `study` that was run with all of `arguments`."""
        wanted = arguments.items()
        return next((one for one in self if one.study == study and wanted <= one.arguments.items()), None)

    def by_id(self, identity: str) -> KeptFinding:
        """The finding of this id. Raises NotFound, which says whether it has been given up."""
        if identity in self._kept:
            return self._kept[identity]
        number = _NUMBER.fullmatch(identity)
        if number and 0 < int(number[1]) <= self._made:
            message = f"the finding '{identity[:64]}' was given up for newer ones: run the study again"
            raise NotFound(message, type="given_up", param="id")
        raise NotFound(f"no finding '{identity[:64]}': GET /v1/studies lists those that are kept", param="id")

    def file(self, identity: str, name: str) -> bytes:
        """A file of a finding. Raises NotFound, with the finding's files or why this one was not kept."""
        kept = self.by_id(identity)
        if name in kept.files:
            return kept.files[name]
        if name in kept.files_left_out:
            raise NotFound(kept.files_left_out[name], type="file_left_out", param="name")
        known = ", ".join(kept.files) or "none"
        raise NotFound(f"no file '{name[:64]}' of {kept.id}; it has {known}", param="name")

    def __iter__(self) -> Iterator[KeptFinding]:
        """All, newest first."""
        return reversed(self._kept.values())
