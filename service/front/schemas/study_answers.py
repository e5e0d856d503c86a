"""The answers of the studies, beside the findings themselves."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict


class StudyProgressEvent(TypedDict):
    """Data of a `progress` event: what the study does now; `done` of `total` alike parts are finished."""

    message: str
    done: int | None
    total: int | None


class StudyEntry(TypedDict):
    """A finding that can be read again: `created` is in UTC, `arguments` those that it was run with.

    `files` can be downloaded by name; `files_left_out` are those that were too large, each with the reason.
    """

    id: str
    study: str
    arguments: dict[str, Any]
    created: str
    files: list[str]
    files_left_out: dict[str, str]


class StudiesAnswer(TypedDict):
    """Answer of GET /v1/studies, newest first. `given_up` older findings were, for newer ones."""

    studies: list[StudyEntry]
    given_up: int
