"""The answers of the probes."""

from __future__ import annotations

from typing_extensions import TypedDict


class ProbeName(TypedDict):
    """One live experiment, and what it teaches; `not_on_cpu` is why it needs CUDA, null where it does not."""

    name: str
    teaches: str
    not_on_cpu: str | None


class ProbesAnswer(TypedDict):
    """Answer of GET /v1/probes."""

    probes: list[ProbeName]


class ProbeSide(TypedDict):
    """Seconds of a step on one side of a probe: the median with its 95 % interval."""

    median_seconds: float
    low: float
    high: float


class ProbeCounter(TypedDict):
    """What a probe's fault moved."""

    name: str
    before: float
    after: float


ProbeAnswer = TypedDict(
    "ProbeAnswer",
    {
        "name": str,
        "without": ProbeSide,
        "with": ProbeSide,
        "counter": ProbeCounter,
        "blame": str,
        "cure": str,
    },
)
"""Answer of POST /v1/probes/{name}: a step without and with the fault, the line to blame, the cure."""
