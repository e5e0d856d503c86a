"""The HTTP answers, as the OpenAPI page shows them and mypy checks them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from service.protocol.messages import FinishReason
from service.protocol.timings import SamplesOf, Source


class ErrorDetail(TypedDict):
    """`param` names the field to change, where there is one."""

    type: str
    message: str
    param: str | None


class ErrorBody(TypedDict):
    """The one error shape."""

    error: ErrorDetail


class ModeName(TypedDict):
    """The requested mode, and the one that the request really ran as.

    Where `auto` was requested, `picked` is the mode of the ladder that ran, and `reason` says who advises it.
    """

    requested: str
    effective: str
    reason: str | None
    picked: NotRequired[str]


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
    """Sums over the steps of one phase; null: this device cannot measure it.

    `dispatch_low_seconds` to `dispatch_high_seconds` is the interval of a sampled dispatch. The samples that
    it rests on were in a kernel, in the host's code, in the operating system, or in code that no rule knows
    (unclassified). `samples_of`: they were taken in this request's own steps ("request"), or, where these
    have too few, in the newest of its mode, phase and batch bucket ("traffic"). Null: there are none.
    `period_seconds` is all the time from the phase's first step to the next phase, or to the end of the last
    step's bookkeeping: what the engine does between steps is in it, and in no other number of a phase.
    """

    steps: int
    wall_seconds: float | None
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_samples: int | None
    host_samples: int | None
    system_samples: int | None
    unclassified_samples: int | None
    samples_of: SamplesOf | None
    minor_faults: int
    period_seconds: float | None


class Sources(TypedDict):
    """How dispatch and kernel were found; null: not at all.

    "sampled" (on a CPU): dispatch is the host's share of samples of the engine's thread, of the steps' wall
    time, and kernel the rest. `steps` are "shared" where the service merged this request with others:
    dispatch and kernel are then those of the whole of every step that it ran in, and belong to the others as
    well.
    """

    dispatch: Source | None
    kernel: Source | None
    steps: Literal["own", "shared"]


@dataclass(frozen=True, slots=True)
class TimingsBody:
    """From the body parsed until just before the answer is serialised, in parts that add up.

    `padded_prompt_tokens` are the tokens per row that prefill computed, padding included; `attended_tokens`
    the cache positions that attention read in the last decode step. `stall_seconds`: after its first token it
    stood still while others were prefilled that run with it; null where requests are not merged.
    `effective_batch` is the mean number of sequences per step that it ran with: its own, and where requests
    are merged those of others. A request that was `profiled` or `sampled` was slowed down by that, and is in
    no statistic of latency.
    """

    queue_seconds: float
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    stall_seconds: float | None
    other_seconds: float
    border_seconds: float
    front_seconds: float
    tokenise_seconds: float
    total_seconds: float
    time_to_first_token_seconds: float | None
    involuntary_switches: int
    padded_prompt_tokens: int
    attended_tokens: int
    effective_batch: float
    prefill: PhaseBody
    decode: PhaseBody
    sources: Sources
    kernels: int | None
    launches: int | None
    profiled: bool
    sampled: bool


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
    """Paired over the rounds, with its 95 % interval; null where there are fewer than 8 rounds."""

    vs: str
    ratio: float
    low: float | None
    high: float | None


class ModeResult(TypedDict):
    """One mode of a comparison: medians over its rounds, waiting behind other requests left out.

    On a CPU dispatch and kernel are those medians by the shares of one more run, sampled faster: they rest
    on `samples`, all phases together. Dispatch lies between `dispatch_low_seconds` and
    `dispatch_high_seconds`. null: not sampled, or measured (CUDA).
    `speedup` is over eager, `speedup_without_compiler` over inference_mode; null for that mode itself, and
    where it did not run.
    """

    mode: str
    effective: str
    median_seconds: float
    dispatch_seconds: float | None
    dispatch_low_seconds: float | None
    dispatch_high_seconds: float | None
    kernel_seconds: float | None
    samples: int | None
    speedup: Speedup | None
    speedup_without_compiler: Speedup | None
    text_equal: bool | None


class CompareAnswer(TypedDict):
    """Answer of compare."""

    batch_size: int
    results: list[ModeResult]


class AdviceAnswer(TypedDict):
    """The mode to use at a batch size; at `crossover_batch`, if seen, eager's kernel share is a half.

    `device_bound_index` is the kernel share of the advised mode's decode, `bound` its class: a GPU's terms.
    """

    batch_size: int
    mode: str
    reason: str
    bound: str | None
    device_bound_index: float | None
    crossover_batch: float | None
    speedup: Speedup
    samples: int
