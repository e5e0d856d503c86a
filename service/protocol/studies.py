"""The messages between front and anatomy process: one study there, its progress and its end back."""

from __future__ import annotations

import msgspec

from service.protocol.messages import Problem, Stop


class Study(msgspec.Struct, frozen=True, kw_only=True, tag="study"):
    """Run the study `name`; `arguments` is its arguments' JSON."""

    id: int
    name: str
    arguments: bytes


ToAnatomy = Study | Stop


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The process is up, its model loaded; sent once."""


class StudyProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """What study `id` is doing now, as a short text; `done` of `total` alike parts are finished."""

    id: int
    text: str
    done: int | None = None
    total: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag="finding"):
    """How study `id` ended well; `body` is the finding's JSON as it leaves by HTTP."""

    id: int
    body: bytes


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """How study `id` failed."""

    id: int
    problem: Problem


FromAnatomy = Ready | StudyProgress | Finding | Refused
