"""Every struct that crosses a process border, a socket or a file, defined once; those of a module's calls are
in `forward_records`, those of a start in `start_records`. No torch and no HTTP.

Instants (`*_ns`) are `time.perf_counter_ns()`: on Linux that is CLOCK_MONOTONIC, one clock for all processes
of the machine, so instants of two processes can be subtracted. Durations are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from service.forward_records import BatchPlace, ForwardWork
from service.start_records import StartTimes

METHOD = 5
"""Raised with an entry under *Method* in CHANGELOG.md after which values are no longer comparable."""

Phase = Literal["prefill", "decode", "forward"]
PHASES: tuple[Phase, ...] = ("prefill", "decode")
"""Those of a language model; `service.workloads` has those of any served model."""

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
        return self.kernel + self.host + self.system + self.unclassified

    def __add__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(**{side: getattr(self, side) + getattr(other, side) for side in SIDES})

    def __sub__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(**{side: getattr(self, side) - getattr(other, side) for side in SIDES})


class StepSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A step of one phase and batch bucket: the dispatch share of its wall time, in [`low`, `high`].

    `step_seconds` is the mean wall time of the newest steps, `newest` the samples that the share rests on,
    `all` every one since the engine started.
    """

    phase: Phase
    batch: int
    dispatch_share: float
    low: float
    high: float
    step_seconds: float
    newest: SampleCounts
    all: SampleCounts


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds per step of `queued` calls that the device ran back to back, unprofiled: median, 95 % interval.

    The step computed `row_tokens` per row, and attention read `attended_tokens` positions of the cache; of a
    module they are 0 and the number of the size, from 0.
    `upper_bound`: the device caught up with the host, and so idled between two calls.
    """

    phase: Phase
    batch: int
    row_tokens: int
    attended_tokens: int
    seconds: float
    low: float
    high: float
    samples: int
    queued: int
    upper_bound: bool


class KernelTime(msgspec.Struct, frozen=True, kw_only=True):
    """Kernel seconds of one step: median of the newest profiled `samples`, and its 95 % interval if any.

    Sizes are as in `DeviceTime`: there is one of these for each shape in which the step is called.
    """

    phase: Phase
    batch: int
    row_tokens: int
    attended_tokens: int
    seconds: float
    low: float | None
    high: float | None
    samples: int


class ProfilerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Dispatch of a decode step at the smallest batch, after the profiler's first session over before it.

    [`low`, `high`] is the 95 % interval over `rounds` on either side (Welch, on logarithms), not interleaved.
    """

    ratio: float
    low: float
    high: float
    rounds: int
    before_seconds: float
    after_seconds: float


Source = Literal["measured", "attached", "sampled", "profiled"]
"""`attached`: measured while the profiler is attached, which slows every launch."""

SamplesOf = Literal["request", "traffic"]


class PhaseTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the steps of one phase. None: not measurable on this device, or not known yet.

    `wall` and `dispatch` include the operators that the engine issues beside the step: sampling after it, and
    on CUDA the copies that feed it. `period` lasts from the phase's first call to the next phase's, or to the
    end of the bookkeeping after the last one. `device_span` is the device's clock from before each call to
    its last work, idle time included. On a CPU dispatch is a share of wall time, by samples of the engine's
    thread: of the job's own steps ("request"), or of the newest of its mode, phase and bucket ("traffic").
    `*_steps_seconds`: one value per step on CUDA, else none.
    """

    steps: int
    wall_seconds: float | None = None
    dispatch_seconds: float | None = None
    device_span_seconds: float | None = None
    kernel_seconds: float | None = None
    sync_wait_seconds: float | None = None
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

    @property
    def calls_seconds(self) -> float | None:
        """The calls alone; on CUDA, where one is issued while another runs, from the first to the last."""
        return self.wall_seconds if self.sync_wait_seconds is None else self.period_seconds


class StepGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one phase and batch bucket. `rows`: sequences in them, summed over steps, without padding."""

    phase: Phase
    batch: int
    rows: int
    timings: PhaseTimings


class SharedWork(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job that may have run in a batch with others.

    `stall_seconds`: after its prefill, it stood still while prompts of others were prefilled. `rows`: the
    mean number of sequences per step. `alone`: no step had sequences of another job, and none stalled it.
    `counted` and `counted_switches`: what this job counts in metrics, where each step counts once.
    """

    stall_seconds: float
    rows: float
    alone: bool
    counted: list[StepGroup]
    counted_switches: int


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine measured of one job. A phase that its workload does not have has no steps.

    `padded_prompt_tokens` are the tokens per row that prefill computed, `attended_tokens` the cache positions
    that attention read in the last decode step. `shared`: jobs are merged, and the phases have the whole of
    each step that the job ran in, whoever else was in it.
    """

    queue_seconds: float
    prefill: PhaseTimings = PhaseTimings(steps=0)
    decode: PhaseTimings = PhaseTimings(steps=0)
    forward: PhaseTimings = PhaseTimings(steps=0)
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

    `launches` are launch calls, of which a graph replay is one. Figures of kernels are means over
    `kernel_steps` steps.
    """

    phase: Phase
    steps: int
    operators: float
    kernels: float | None = None
    kernel_steps: int = 0
    launches: float | None = None
    graph_launches: float | None = None
    kernel_seconds: float | None = None


Readiness = Literal["cold", "warming", "ready", "failed"]
Cache = Literal["cold", "warm"]

Batching = Literal["off", "continuous"]
"""How requests that wait are merged: never, or whenever rows are free."""


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """The first call of one compiled callable. `cold_seconds`: with an empty cache, None if never seen."""

    phase: Phase
    batch: int
    seconds: float
    cold: bool
    cold_seconds: float | None


class Parity(msgspec.Struct, frozen=True, kw_only=True):
    """This mode's logits beside eager's on fixed prompts, teacher-forced.

    Greedy tokens that differ are `near_ties` where eager's top two logits are within twice the tolerance.
    """

    passed: bool
    max_abs_logit_difference: float
    tolerance: float
    positions: int
    differing_tokens: int
    near_ties: int


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """The backends that torch chose for `scaled_dot_product_attention` in eager, on the prompts of `Parity`.

    `parity` is beside the backend `math`, of plain operators; None for the reason `unchecked`.
    """

    phase: Phase
    batch: int
    backends: list[str]
    parity: Parity | None = None
    unchecked: str | None = None


class ModeStatus(msgspec.Struct, frozen=True, kw_only=True, tag="mode"):
    """The state of one mode, sent at every change. `resident_bytes`: what its warm-up added. `profiles`: of
    steps that were profiled at warm-up on CUDA, one for each phase and batch bucket.
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
    profiles: list[StepProfile] = []
    profiler_cost: ProfilerCost | None = None


class LinearLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How linear weights lie in memory, and why. `step_seconds` per decode step, by layout and rows."""

    layout: str
    reason: str
    step_seconds: dict[str, dict[int, float]] = {}


class MemoryBandwidth(msgspec.Struct, frozen=True, kw_only=True):
    """Over `buffer_bytes`: `read` by a CPU's threads; `copy` on CUDA, bytes read and written together."""

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
    """Bytes that a decode step must move: weights once, the cache per attended position, the rest per row."""

    weights: int
    cache_per_position: int
    activations_per_row: int


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True, tag="engine"):
    """The engine and its machine; sent once at start and again whenever a value in it changed.

    `workload` is a name of `service.workloads`. Of a module `layers`, `width`, `context` and `prefill_chunk`
    are 0, `inputs` says what it is called on at each batch size and `batch_place` where that has the batch;
    `input_sizes` names what else varies in it, such as lengths.
    `model_revision` is the Hugging Face hub's commit, if it is a model of the hub.
    `prompt_bytes`: a prompt of more UTF-8 is refused before it is made into tokens.
    `memory` maps the caching allocator's sizes (`allocated_current`, `allocated_peak`, …) to bytes, and
    `alloc_retries` and `ooms` to their counts since the engine started; None on a CPU.
    `blas` names the libraries that multiply matrices, and the vector
    instructions of torch's own kernels. `no_samples` and `no_device_times` are why
    these were not measured; `profiler_note` says where the profiler slows all later steps, `sharing_note`
    which other processes use the GPU now.
    """

    pid: int
    model: str
    workload: str = "generate"
    inputs: str | None = None
    batch_place: BatchPlace | None = None
    input_sizes: list[str] = []
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
    memory_bandwidth: MemoryBandwidth | None = None
    step_bytes: StepBytes | None = None
    matrix_rate: MatrixRate | None = None
    step_flops: StepFlops | None = None
    blas: str | None = None
    peak_resident_bytes: int | None = None
    attention: list[Attention] = []
    no_samples: str | None = None
    profiler_note: str | None = None
    sharing_note: str | None = None
    no_device_times: str | None = None
    batching: Batching = "off"
    warm: bool = False
    start: StartTimes | None = None


OutcomeKind = Literal["ok", "error", "cancelled", "timeout", "oom"]
FinishReason = Literal["length", "stop"]


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why something was refused or failed; the front turns `type` into a status code."""

    type: str
    message: str
    param: str | None = None


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine process is started with, as JSON in its first argument.

    `cpus` None: the upper half of its cores (of two, the last). `threads` None: one per physical core of
    `cpus`. `dtype` is float32, bfloat16 or autocast-bfloat16; None: float32 on a CPU, bfloat16 on CUDA.
    `linears`, the layout of linear weights: aten, transposed, or auto for the faster one here.
    One request in `profile_every` is profiled; 0: only those that want it. `discard_compiled`: an earlier
    engine died on what the cache holds.
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
    instrumentation: Literal["off", "full"] = "full"
    profile_every: int = 0
    discard_compiled: bool = False
    batching: Batching = "off"


class Job(msgspec.Struct, frozen=True, kw_only=True, tag="job"):
    """One POST: a batch of prompts, or the inputs `forward` of a module, in one mode. Validated by the front.

    `id` is the front's, and unique; `request_id` the client's. A prompt is text, or its token ids, which only
    the engine can check.
    `alone`: never merged with others; nor is a profiled or sampled one. `sample`: sample its steps about a
    thousand times a second instead of fifty, for a split of its own.
    """

    id: str = ""
    request_id: str = ""
    mode: str
    prompts: Sequence[str | list[int]] = ()
    max_new_tokens: int = 0
    forward: ForwardWork | None = None
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

    @property
    def batch_size(self) -> int:
        return len(self.prompts) if self.forward is None else self.forward.batch_size


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
        return len(self.token_ids)


class Outcome(msgspec.Struct, frozen=True, kw_only=True, tag="outcome"):
    """How a job ended: exactly one per job that the engine took. `timings` is None if it never started.

    A `profile`, or being `sampled`, slowed it down. `kernels` and `launches`: totals of a profiled job.
    `forward_outputs`: the JSON of what a module returned, and `parity` its parity, where asked for.
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
    forward_outputs: bytes | None = None
    parity: Parity | None = None
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

    While it serves, about once a second. `may_wait`: it may wait for another machine, such as a download.
    """

    what: str
    limit_seconds: float
    may_wait: bool = False


SERVING = "serving"
"""A `Doing` between two steps, and while there is nothing to do."""


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
