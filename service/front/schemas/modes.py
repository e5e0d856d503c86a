"""The answer of GET /v1/modes."""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import TypedDict

from service.protocol.status import Cache, Readiness


class SamplesBody(TypedDict):
    """Samples of the engine's thread: in a kernel, in the host's code, in the system, in code of no rule."""

    kernel: int
    host: int
    system: int
    unclassified: int


class SplitBody(TypedDict):
    """A step on a CPU, as its newest samples have it, by phase and batch bucket.

    [`low`, `high`] is the interval of `kernel_share`. `headroom`: how many times as fast the step would be
    without its dispatch; null where no sample was in a kernel.
    """

    phase: Literal["prefill", "decode"]
    batch: int
    step_seconds: float
    dispatch_seconds: float
    kernel_seconds: float
    kernel_share: float
    low: float
    high: float
    headroom: float | None
    samples: SamplesBody


class CompilationBody(TypedDict):
    """The first call of one compiled callable; `cold_seconds` is null until an empty cache was seen."""

    phase: Literal["prefill", "decode"]
    batch: int
    seconds: float
    cold: bool
    cold_seconds: float | None


class ParityBody(TypedDict):
    """Logits beside eager's on fixed prompts."""

    passed: bool
    max_abs_logit_difference: float
    tolerance: float
    positions: int
    differing_tokens: int
    near_ties: int


class DeviceTimeBody(TypedDict):
    """Seconds per step of calls queued back to back on a GPU, without the profiler."""

    phase: Literal["prefill", "decode"]
    batch: int
    seconds: float
    low: float
    high: float
    samples: int
    queued: int
    upper_bound: bool


class KernelTimeBody(TypedDict):
    """Kernel seconds of one step on a GPU, by the profiler; no interval where the samples are too few."""

    phase: Literal["prefill", "decode"]
    batch: int
    seconds: float
    low: float | None
    high: float | None
    samples: int


class ProfilerCostBody(TypedDict):
    """Dispatch of a decode step after the profiler's first session over before it, on a GPU."""

    ratio: float
    low: float
    high: float
    rounds: int
    before_seconds: float
    after_seconds: float


class ModeBody(TypedDict):
    """One mode of this instance. On a CPU the last three are empty, on a GPU `splits`; all until known."""

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
    compilations: list[CompilationBody]
    graph_breaks: int
    recompiles: int
    resident_bytes: int | None
    splits: list[SplitBody]
    parity: ParityBody | None
    device_times: list[DeviceTimeBody]
    kernel_times: list[KernelTimeBody]
    profiler_cost: ProfilerCostBody | None


class AutoBatch(TypedDict):
    """The mode that `auto` runs for one batch bucket, where it is ready; `source`: who advises it."""

    batch_bucket: int
    mode: str
    source: Literal["sweep", "live", "default"]
    reason: str


class AutoBody(TypedDict):
    """What `auto` runs. `sweep`: the folder whose report advises; `unused`: why that is not followed.

    Null: there is no such folder; it is followed, or the engine has not told of itself yet. `default` runs
    where nothing advises, and while an advised mode is not ready.
    """

    default: str
    sweep: str | None
    unused: str | None
    batches: list[AutoBatch]


class ModesAnswer(TypedDict):
    """Answer of GET /v1/modes; `engine` is null while it starts. `service`: its build, machine and load.

    `engine.no_samples` is the reason where no mode has splits.
    """

    modes: list[ModeBody]
    auto: AutoBody
    engine: dict[str, Any] | None
    service: dict[str, Any]
