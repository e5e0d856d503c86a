"""The status of the engine and of its modes, sent at every change."""

from __future__ import annotations

from typing import Literal

import msgspec

from service.protocol.device_times import DeviceTime, KernelTime, ProfilerCost
from service.protocol.splits import StepSplit

Readiness = Literal["cold", "warming", "ready", "failed"]
Cache = Literal["cold", "warm"]

Batching = Literal["off", "window", "continuous"]
"""How requests that wait are merged: never; those that come within a window; whenever rows are free."""


class Compilation(msgspec.Struct, frozen=True, kw_only=True):
    """The first call of one compiled callable.

    `cold` False: its code came from the compile cache. `cold_seconds` is what it took when the cache was
    empty, as recorded then; None where that was never seen.
    """

    phase: Literal["prefill", "decode"]
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

    phase: Literal["prefill", "decode"]
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
