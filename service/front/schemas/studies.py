"""The request and the answers of the studies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from service.front.schemas.requests import WHOLE


class OperatorsBody(BaseModel):
    """POST /v1/studies/operators: which step to list."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        json_schema_extra={"examples": [{"mode": "eager", "batch_size": 1, "phase": "decode"}]},
    )

    mode: str = Field(description="One of GET /v1/modes.")
    batch_size: Annotated[int, Field(ge=1), WHOLE] = Field(
        default=1, description="Run in the smallest bucket that holds it."
    )
    phase: Literal["decode", "prefill"] = "decode"


class StudyEntry(TypedDict):
    """A finding that can be read again: `created` is in UTC, `arguments` those that it was run with."""

    id: str
    study: str
    arguments: dict[str, Any]
    created: str


class StudiesAnswer(TypedDict):
    """Answer of GET /v1/studies, newest first; findings are kept until the front ends."""

    studies: list[StudyEntry]
