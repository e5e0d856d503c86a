"""Every struct that crosses a process border, a socket or a file, defined once. No torch and no HTTP.

Instants (`*_ns`) are `time.perf_counter_ns()`: on Linux that is CLOCK_MONOTONIC, one clock for all processes
of the machine, so instants of two processes can be subtracted. Durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

METHOD = 5
"""Raised with an entry under *Method* in CHANGELOG.md after which values are no longer comparable. Results of
before it was recorded have none.
"""


Phase = Literal["prefill", "decode"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")

Side = Literal["kernel", "host", "system", "unclassified"]
SIDES: tuple[Side, ...] = ("kernel", "host", "system", "unclassified")


class SampleCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many samples were in a kernel, in the host's code, in the operating system, in code of no rule."""

    kernel: int = 0
    host: int = 0
    system: int = 0
    unclassified: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.kernel + self.host + self.system + self.unclassified

    def __add__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(
            kernel=self.kernel + other.kernel,
            host=self.host + other.host,
            system=self.system + other.system,
            unclassified=self.unclassified + other.unclassified,
        )

    def __sub__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(
            kernel=self.kernel - other.kernel,
            host=self.host - other.host,
            system=self.system - other.system,
            unclassified=self.unclassified - other.unclassified,
        )


class StepSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one phase and batch bucket, as its newest samples have it.

    `dispatch_share` of a step's wall time is dispatch, the rest kernel; [`low`, `high`] holds the truth:
    counting, classes and the sampler's own effect added up. `step_seconds` is the mean wall time of the
    newest steps, `newest` the samples that the share rests on, `all` every one since the engine started.
    """

    phase: Phase
    batch: int
    dispatch_share: float
    low: float
    high: float
    step_seconds: float
    newest: SampleCounts
    all: SampleCounts

    @property
    def dispatch_seconds(self) -> float:
        """Of one step."""
        return self.dispatch_share * self.step_seconds

    @property
    def kernel_seconds(self) -> float:
        """Of one step: the rest."""
        return (1 - self.dispatch_share) * self.step_seconds


PROFILER_MATTERS = 1.05
"""Attaching the profiler matters where the whole interval of its ratio lies above this."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step of `queued` calls that the device ran back to back: median of visits, 95 % interval.

    The profiler has no part in it. It contains what the device itself needs between two kernels.
    `upper_bound`: the device caught up with the host while it ran the queue, so that it idled in between.
    """

    phase: Phase
    batch: int
    seconds: float
    low: float
    high: float
    samples: int
    queued: int
    upper_bound: bool


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel seconds of one step: median of the newest profiled `samples`, with its 95 % interval.

    `low` and `high` are None where the samples are too few for an interval. The first samples are steps that
    warm-up profiled, later ones the median step of a profiled request.
    """

    phase: Phase
    batch: int
    seconds: float
    low: float | None
    high: float | None
    samples: int


class ProfilerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Dispatch of a decode step at the smallest batch, after the profiler's first session over before it.

    [`low`, `high`] is the 95 % interval over `rounds` on either side (Welch, on logarithms). The two are
    minutes apart at most, but not interleaved: a session cannot be undone, so a machine that changed
    meanwhile is in the ratio too. The seconds are medians.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    before_seconds: float
    after_seconds: float

    @property
    def matters(self) -> bool:
        """Whether every later number of this mode is noticeably slower than without the profiler."""
        return self.low > PROFILER_MATTERS


Source = Literal["measured", "sampled", "profiled"]

SamplesOf = Literal["request", "traffic"]
"""A job's own steps; or the newest steps of its mode, phase and batch bucket."""


class PhaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps of one phase. None: not measurable on this device, or not known yet.

    `wall` and `dispatch` include the operators that the engine issues beside the step: sampling after it, and
    on CUDA the copies that feed it. `period` is the whole time of the phase: from the beginning of its first
    call to that of the next phase's first call, or, for the last phase, to the end of its last fetch and of
    the bookkeeping after it. So period less wall is what the engine does between steps. `device_span` is the
    device's clock from before each call to its last work, idle time included: see `step.meters.Readings`.
    On a CPU dispatch is the host's share of samples of the engine's thread, of a step's wall time, and
    `dispatch_low_seconds` and `dispatch_high_seconds` are its interval. The numbers of samples are given by
    their class, and `samples_of` says whose steps they were taken in. None: there are none. `minor_faults`
    are page faults of the engine's thread. `dispatch_steps_seconds` holds one value per step where each
    step's dispatch is measured (CUDA), else is empty; `device_span_steps_seconds` and `period_steps_seconds`
    likewise.
    """

    steps: int
    wall_seconds: float | None
    dispatch_seconds: float | None
    device_span_seconds: float | None
    kernel_seconds: float | None
    sync_wait_seconds: float | None
    dispatch_low_seconds: float | None = None
    dispatch_high_seconds: float | None = None
    kernel_samples: int | None = None
    host_samples: int | None = None
    system_samples: int | None = None
    unclassified_samples: int | None = None
    samples_of: SamplesOf | None = None
    minor_faults: int = 0
    period_seconds: float | None = None
    dispatch_steps_seconds: list[float] = []
    device_span_steps_seconds: list[float] = []
    period_steps_seconds: list[float] = []


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase and one batch bucket. `rows`: sequences of requests in them, added up over the
    steps; the rest of each bucket was padding.
    """

    phase: Phase
    batch: int
    rows: int
    timings: PhaseTimings


class SharedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a job that ran in a batch with others says of it.

    `stall_seconds`: after its prefill, it stood still while the engine prefilled prompts of others. `rows`:
    the mean number of sequences per step that the job ran with, its own included. `alone`: no step had
    sequences of another job, and none stalled it. A step belongs to all jobs in it, and is counted by one:
    `counted` are the steps that this one counts in metrics, `counted_switches` the involuntary switches.
    """

    stall_seconds: float
    rows: float
    alone: bool
    counted: list[StepGroup]
    counted_switches: int


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine measured of one job.

    `queue_seconds` is the time the job waited while the engine was busy with something else, or for others to
    be merged with; transport between the processes is not queue, it is part of `other`.
    `padded_prompt_tokens` are the tokens per row that prefill computed, `attended_tokens` the cache positions
    that attention read in the last decode step. `shared` is there where jobs are merged: the phases then
    have the whole of each step that the job ran in, whoever else was in it.
    """

    queue_seconds: float
    prefill: PhaseTimings
    decode: PhaseTimings
    tokenise_seconds: float
    involuntary_switches: int
    padded_prompt_tokens: int = 0
    attended_tokens: int = 0
    dispatch_source: Source | None
    kernel_source: Source | None
    taken_ns: int
    first_token_ns: int | None
    done_ns: int
    shared: SharedWork | None = None


class StepProfile(msgspec.Struct, frozen=True, kw_only=True):
    """Per step of one phase, over its profiled steps. None: there is no such thing on this device.

    `operators` are the calls that a step makes into the dispatcher; `launches` are launch calls, of which a
    graph replay is one. `idle_seconds` are gaps between the device's work within a step, the two waits their
    cause, where it is known: not while the call that replays a graph has not returned. `kernel_steps` of the
    steps have known kernels: what is given of kernels is the mean over these.
    """

    phase: Phase
    steps: int
    operators: float
    copies: float
    kernels: float | None = None
    kernel_steps: int = 0
    launches: float | None = None
    graph_launches: float | None = None
    kernel_seconds: float | None = None
    idle_seconds: float | None = None
    host_wait_seconds: float | None = None
    kernel_wait_seconds: float | None = None


Readiness = Literal["cold", "warming", "ready", "failed"]
Cache = Literal["cold", "warm"]

Batching = Literal["off", "window", "continuous"]
"""How requests that wait are merged: never; those that come within a window; whenever rows are free."""


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """The first call of one compiled callable.

    `cold` False: its code came from the compile cache. `cold_seconds` is what it took when the cache was
    empty, as recorded then; None where that was never seen.
    """

    phase: Phase
    batch: int
    seconds: float
    cold: bool
    cold_seconds: float | None


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """This mode's logits beside eager's on fixed prompts, teacher-forced.

    `differing_tokens` counts greedy tokens that differ where eager's top two logits are further apart than
    twice the tolerance; `near_ties` those that differ but are closer.
    """

    passed: bool
    max_abs_logit_difference: float
    tolerance: float
    positions: int
    differing_tokens: int
    near_ties: int


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Eager's attention in one phase and batch, on the fixed prompts of `Parity`.

    `backends` are those that torch chose for `scaled_dot_product_attention`, by name; none where the model
    does not call it. `parity` compares with the backend `math`, which is written in plain operators: a kernel
    that is wrong in all modes alike differs from it. Where it is None, `unchecked` is the reason.
    """

    phase: Phase
    batch: int
    backends: list[str]
    parity: Parity | None = None
    unchecked: str | None = None


class ModeStatus(msgspec.Struct, frozen=True, kw_only=True, tag="mode"):
    """The state of one mode; sent at every change.

    `resident_bytes`: by how much the engine's process grew in memory while the mode was made ready. Weights
    that a mode packs for itself are in it, and what its compiler has left behind. On a CPU `device_times`,
    `kernel_times` and `profiler_cost` stay empty; `profiler_cost` is None too where it is not known.
    """

    mode: str
    removes: str
    state: Readiness
    effective: str
    reason: str | None = None
    detail: str | None = None
    cache: Cache | None = None
    warmup_seconds: float | None = None
    compile_seconds: list[float] = []
    compilations: list[Compilation] = []
    graph_breaks: int = 0
    recompiles: int = 0
    graph_captures: int = 0
    splits: list[StepSplit] = []
    resident_bytes: int | None = None
    parity: Parity | None = None
    device_times: list[DeviceTime] = []
    kernel_times: list[KernelTime] = []
    profiler_cost: ProfilerCost | None = None


class LinearLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How the weights of linear layers lie in memory, the same for all modes, and why.

    `step_seconds` are those of all linear layers of one decode step, by layout and rows; empty where the
    layout was not chosen by timing.
    """

    layout: str
    reason: str
    step_seconds: dict[str, dict[int, float]] = {}


class MemoryBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the device moves memory, over `buffer_bytes`: as many as the weights, within bounds.

    `read` by a CPU's threads; `copy` on CUDA, bytes read and bytes written together. A buffer that fits in
    caches is moved at their speed, as weights of that size are.
    """

    kind: Literal["read", "copy"]
    bytes_per_second: float
    buffer_bytes: int


class MatrixRate(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the device multiplies two square matrices of `size`, in the dtype of the weights."""

    flops_per_second: float
    size: int


class StepFlops(msgspec.Struct, frozen=True, kw_only=True):
    """Floating-point operations of a decode step: per sequence, and per sequence and attended position."""

    per_row: int
    per_position: int


class StepBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a decode step must move: weights once, keys and values per sequence and attended position.

    `activations_per_row` enter and leave the matrix products, per sequence.
    """

    weights: int
    cache_per_position: int
    activations_per_row: int


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True, tag="engine"):
    """The engine and its machine; sent once at start and again whenever a value in it changed.

    `model_revision` is the Hugging Face hub's commit; None for a model that is none of the hub's.
    `memory` maps the caching allocator's sizes (`allocated_current`, `allocated_peak`, …) to bytes, and
    `alloc_retries` and `ooms` to their counts since the engine started; None on a CPU.
    `peak_resident_bytes` is the most that the engine's process has had in the machine's memory so far.
    `no_samples` is the reason where the engine's thread is not sampled: a CPU then has no split.
    `null_kernel_seconds` is what one operator without work costs the host on this machine (`alone`), and on
    CUDA one kernel inside a replayed graph (`in_graph`); None until measured. `no_null_kernel_graph` is the
    reason where the latter could not be.
    `memory_bandwidth` and `matrix_rate` are None until measured. They, `step_bytes` and `step_flops` make the
    roofline of a decode step. `blas` names the libraries that multiply matrices, and the vector instructions
    that torch's own kernels use.
    `profiler_note` says where the profiler slows all later steps, or why that is not known; `no_device_times`
    is the reason where a CUDA device's own times of a step could not be taken.
    `attention` has the backends of eager's attention, checked as the modes become ready. `prompt_bytes` is
    the UTF-8 of one prompt, at most: a longer one is refused before it is made into tokens. None: not told.
    `batching`: how requests are merged, `batch_window_ms` the window; None without one.
    """

    pid: int
    model: str
    parameters: int
    layers: int
    width: int
    context: int
    prompt_bytes: int | None = None
    prefill_chunk: int
    batch_buckets: list[int]
    model_hash: str
    model_revision: str | None = None
    device: str
    device_name: str
    dtype: str
    torch: str
    cuda: str | None
    threads: int
    cpus: list[int]
    modes: list[str]
    linears: LinearLayout | None = None
    memory: dict[str, int] | None = None
    null_kernel_seconds: dict[str, float] | None = None
    memory_bandwidth: MemoryBandwidth | None = None
    step_bytes: StepBytes | None = None
    matrix_rate: MatrixRate | None = None
    step_flops: StepFlops | None = None
    blas: str | None = None
    peak_resident_bytes: int | None = None
    no_null_kernel_graph: str | None = None
    attention: list[Attention] = []
    no_samples: str | None = None
    profiler_note: str | None = None
    no_device_times: str | None = None
    batching: Batching = "off"
    batch_window_ms: float | None = None
    warm: bool = False


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
    `sample`: sample its steps about a thousand times a second instead of fifty, for a split of its own.
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
    """Pause once the jobs sent before are done, and answer with `Paused`; later jobs wait for a Resume."""

    id: int


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
    """The answer to Pause `id`: from now on the engine runs nothing."""

    id: int


class Doing(msgspec.Struct, frozen=True, kw_only=True, tag="doing"):
    """What the engine's main thread does from now on: its next message follows within `limit_seconds`.

    Sent before everything that takes long, and while the engine serves about once a second, between two
    steps. `may_wait`: it may meanwhile wait for something beyond this machine, such as a download.
    """

    what: str
    limit_seconds: float
    may_wait: bool = False


SERVING = "serving"
"""What a `Doing` says that is sent between two steps, and while there is nothing to do."""


ToFront = Token | Begun | Outcome | ModeStatus | EngineStatus | Paused | Doing


class Study(msgspec.Struct, frozen=True, kw_only=True, tag="study"):
    """Run the study `name`; `arguments` is its arguments' JSON."""

    id: int
    name: str
    arguments: bytes


ToAnatomy = Study | Stop


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The process is up, its model loaded; sent once."""


class StudyProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """What study `id` is doing now, as a short text; `done` of `total` alike parts are finished."""

    id: int
    text: str
    done: int | None = None
    total: int | None = None


class Finding(msgspec.Struct, frozen=True, kw_only=True, tag="finding"):
    """How study `id` ended well; `body` is the finding's JSON as it leaves by HTTP."""

    id: int
    body: bytes


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """How study `id` failed."""

    id: int
    problem: Problem


FromAnatomy = Ready | StudyProgress | Finding | Refused
