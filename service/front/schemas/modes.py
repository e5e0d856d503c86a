"""The answer of GET /v1/modes."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from service.protocol.status import Cache, Readiness


class FloorBody(TypedDict):
    """Dispatch of one decode step, by batch bucket."""

    batch: int
    seconds: float
    low: float
    high: float
    samples: int
    source: Literal["calibrated", "interpolated"]


class ParityBody(TypedDict):
    """Logits beside eager's on fixed prompts."""

    passed: bool
    max_abs_logit_difference: float
    tolerance: float
    positions: int
    differing_tokens: int
    near_ties: int


class ModeBody(TypedDict):
    """One mode of this instance."""

    mode: str
    removes: str
    state: Readiness
    requested: str
    effective: str | None
    reason: str | None
    detail: str | None
    cache: Cache | None
    warmup_seconds: float | None
    compile_seconds: list[float]
    graph_breaks: int
    recompiles: int
    dispatch_floors: list[FloorBody]
    parity: ParityBody | None


class ModesAnswer(TypedDict):
    """Answer of GET /v1/modes; `engine` is null while it starts."""

    modes: list[ModeBody]
    engine: dict[str, Any] | None
