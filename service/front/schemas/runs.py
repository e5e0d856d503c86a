"""The request and the answers of the sweeps under the results folder."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict


class RunBody(TypedDict):
    """One sweep, from its own files; null is what they do not have.

    `headline` is the report's first line, `valid` whether the gates passed, `problem` which file is faulty.
    """

    name: str
    started: str | None
    complete: bool | None
    preset: str | None
    model: str | None
    device_name: str | None
    commit: str | None
    valid: bool | None
    headline: str | None
    has_report: bool
    problem: str | None


class RunsAnswer(TypedDict):
    """Answer of GET /v1/runs, newest first; `folder` is the name of the results folder."""

    folder: str
    runs: list[RunBody]


class CompareRunsBody(BaseModel):
    """POST /v1/runs/compare: two sweeps of GET /v1/runs by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    before: str = Field(min_length=1, max_length=511)
    after: str = Field(min_length=1, max_length=511, description="The sweep of the build to be judged.")
    force: bool = Field(default=False, description="Compare unlike runs too, and say what differs.")
