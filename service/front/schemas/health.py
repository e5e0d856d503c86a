"""The answers of the health routes, where all is well; else they are errors."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict


class LiveAnswer(TypedDict):
    """Answer of GET /health/live.

    `engine` is "up", or why there is none; `engine_doing` what it last announced, null where it announced
    nothing or the key is missing; `anatomy` what its process does, null where there is none.
    """

    status: Literal["live"]
    engine: str
    engine_doing: str | None
    engine_paused: bool
    anatomy: str | None


class ReadyAnswer(TypedDict):
    """Answer of GET /health/ready: the modes that serve, and by name why the others failed.

    `degraded` is empty where all serve; the reasons are told with the key.
    """

    status: Literal["ready"]
    modes: list[str]
    degraded: dict[str, str]
