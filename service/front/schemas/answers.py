"""The HTTP answers, as the OpenAPI page shows them and mypy checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict

from service.protocol.messages import FinishReason, Source
from service.protocol.status import Cache, Readiness


class ErrorDetail(TypedDict):
    """`param` names the field to change, where there is one."""

    type: str
    message: str
    param: str | None


class ErrorBody(TypedDict):
    """The one error shape."""

    error: ErrorDetail


class ModeName(TypedDict):
    """The requested mode, and the one that the request really ran as."""

    requested: str
    effective: str
    reason: str | None


class OutputBody(TypedDict):
    """The completion of one prompt."""

    text: str
    finish_reason: FinishReason
    completion_tokens: int


class Usage(TypedDict):
    """Tokens, padding not counted."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class PhaseBody:
    """Sums over the steps of one phase; null: this device cannot measure it."""

    steps: int
    wall_seconds: float | None
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None


class Sources(TypedDict):
    """How dispatch and kernel were found; null: not at all.

    A "calibrated" dispatch is a lower estimate: that of a hollow twin of the model, whose kernels do nothing.
    A "residual" kernel is an upper estimate: what dispatch leaves of the wall-clock time.
    """

    dispatch: Source | None
    kernel: Source | None


@dataclass(frozen=True, slots=True)
class TimingsBody:
    """From the body parsed until just before the answer is serialised, in parts that add up."""

    queue_seconds: float
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    other_seconds: float
    border_seconds: float
    tokenise_seconds: float
    total_seconds: float
    time_to_first_token_seconds: float | None
    involuntary_switches: int
    prefill: PhaseBody
    decode: PhaseBody
    sources: Sources
    kernels: int | None
    launches: int | None
    profiled: bool


class GenerateAnswer(TypedDict):
    """Answer of generate, and a stream's last event."""

    id: str
    model: str
    mode: ModeName
    device: str
    batch_size: int
    batch_bucket: int
    outputs: list[OutputBody]
    usage: Usage
    timings: TimingsBody


class Speedup(TypedDict):
    """Paired over the rounds, with its 95 % interval; null where the rounds are too few to bound it."""

    vs: str
    ratio: float
    low: float | None
    high: float | None


class ModeResult(TypedDict):
    """One mode of a comparison: medians over its rounds, waiting behind other requests left out."""

    mode: str
    effective: str
    median_seconds: float
    dispatch_seconds: float | None
    kernel_seconds: float | None
    speedup: Speedup | None
    text_equal: bool | None


class CompareAnswer(TypedDict):
    """Answer of compare."""

    batch_size: int
    results: list[ModeResult]


class AdviceAnswer(TypedDict):
    """The mode to use at a batch size; `crossover_batch` is where eager turns kernel-bound, if seen."""

    batch_size: int
    mode: str
    reason: str
    bound: str | None
    device_bound_index: float | None
    crossover_batch: float | None
    speedup: Speedup
    samples: int


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


class ProbeName(TypedDict):
    """One live experiment, and what it teaches."""

    name: str
    teaches: str


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
