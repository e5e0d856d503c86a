"""The messages between front and engine: immutable, typed, and without torch.

Instants (`*_ns`) are `time.perf_counter_ns()`: on Linux that is CLOCK_MONOTONIC, one clock for all
processes of the machine, so instants of the two sides can be subtracted. Durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from service.protocol.doing import Doing
from service.protocol.status import Batching, EngineStatus, ModeStatus
from service.protocol.timings import StepProfile, Timings

Phase = Literal["prefill", "decode"]
OutcomeKind = Literal["ok", "error", "cancelled", "timeout", "oom"]
FinishReason = Literal["length", "stop"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why something was refused or failed; the front turns `type` into a status code."""

    type: str
    message: str
    param: str | None = None


# ---------------------------------------------------------------- front to engine


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process is started with, as JSON in its first argument.

    `cpus` None: decided by the engine (the upper half of its cores; of two, the last). `threads` None: one
    per physical core of `cpus`. `device` "auto": CUDA where there is one. `dtype` is float32, bfloat16 or
    autocast-bfloat16; None: float32 on a CPU, bfloat16 on CUDA. `linears` is how linear weights lie in
    memory: aten, transposed, or auto for the faster one here. `profile_every` None: a small share of the
    requests on CUDA, none on a CPU. `nvtx`: a range around each step, on CUDA. `discard_compiled`: compile
    anew, because an engine before this one died on what the cache holds. `batching`: how jobs that wait are
    merged; `batch_window_ms`: how long the first of a batch waits for others, where that is "window".
    """

    address: str
    model: str = "tiny"
    device: str = "auto"
    dtype: str | None = None
    modes: list[str]
    batch_sizes: list[int]
    linears: str = "aten"
    prefill_chunk: int = 64
    context: int | None = None
    threads: int | None = None
    cpus: list[int] | None = None
    cache_folder: str
    instrumentation: Literal["off", "host", "full"] = "full"
    profile_every: int | None = None
    nvtx: bool = False
    discard_compiled: bool = False
    batching: Batching = "off"
    batch_window_ms: float = 5.0


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """One POST: a batch of prompts to be run in one mode. Validated by the front.

    `id` is given by the front when it accepts the job, and no other job ever has it. `request_id` is what the
    client calls its request: people read it, and several jobs may have the same.
    A prompt is text, or its token ids, which only the engine can check. Until a row has `min_tokens`,
    neither an end of text (unless that is ignored anyway) nor a stop string ends it. `alone`: never merged
    with others, because it is compared with what runs alone; a profiled or sampled one is not either.
    `sample`: sample its steps some thousand times a second instead of a hundred, for a split of its own.
    """

    id: str = ""
    request_id: str = ""
    mode: str
    prompts: Sequence[str | list[int]]
    max_new_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: list[str] = []
    ignore_eos: bool = False
    stream: bool = False
    profile: bool = False
    sample: bool = False
    alone: bool = False
    sent_ns: int
    deadline_ns: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="cancel"):
    """The client of job `id` disconnected; the engine stops the job between two steps."""

    id: str


class Pause(msgspec.Struct, frozen=True, kw_only=True, tag="pause"):
    """Pause once the jobs sent before this are done, and answer with `Paused`; later jobs wait.

    It holds for `lease_seconds` from then on, and as long again from each further Pause of the same id: an
    engine whose front hangs or dies serves again after the lease.
    """

    id: int
    lease_seconds: float


class Resume(msgspec.Struct, frozen=True, kw_only=True, tag="resume"):
    """Serve again; a Pause that has not begun is dropped."""


class Stop(msgspec.Struct, frozen=True, kw_only=True, tag="stop"):
    """End once the running job is done."""


ToEngine = Job | Cancel | Pause | Resume | Stop


# ---------------------------------------------------------------- engine to front


class Token(msgspec.Struct, frozen=True, kw_only=True, tag="token"):
    """New text of one row of a streaming job. `index` is the prompt's place in the batch."""

    id: str
    index: int
    text: str


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """These jobs have left the queue; said only by an engine that merges jobs. Others run one at a time."""

    ids: list[str]


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The completion of one prompt."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason

    @property
    def completion_tokens(self) -> int:
        """Tokens generated, a final end-of-text token included."""
        return len(self.token_ids)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """How a job ended: exactly one per job that the engine took. `timings` is None if it never started.

    `profile` is there for a job that ran under the profiler: its times are disturbed and belong in no
    latency statistics, and so are those of one whose steps were `sampled`. `kernels` and `launches` are its
    totals where all its steps were profiled.
    """

    id: str
    mode: str
    effective: str
    reason: str | None
    kind: OutcomeKind
    problem: Problem | None = None
    batch_size: int
    batch_bucket: int
    prompt_tokens: int = 0
    outputs: list[Output] = []
    timings: Timings | None = None
    kernels: int | None = None
    launches: int | None = None
    profile: list[StepProfile] | None = None
    sampled: bool = False


class Paused(msgspec.Struct, frozen=True, kw_only=True, tag="paused"):
    """The answer to Pause `id`: from now on the engine runs nothing.

    `holds` False answers a renewal that came after the lease had run out: the engine has served since.
    """

    id: int
    holds: bool


ToFront = Token | Begun | Outcome | ModeStatus | EngineStatus | Paused | Doing
