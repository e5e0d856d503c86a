"""What the study of a step's operators is asked, and the JSON that it answers."""

from __future__ import annotations

import msgspec

from service.anatomy.operators.graph_breaks import GraphBreak
from service.anatomy.operators.guards import Guard
from service.anatomy.operators.native import NativeSamples
from service.anatomy.operators.rows import Copy, Operator, Sync
from service.anatomy.operators.sources import FusedKernel
from service.anatomy.operators.wrapper_times import WrapperTimes
from service.measure.estimate import Estimate
from service.measure.floors import Dispatch
from service.protocol.messages import Phase


class OperatorsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`native`: also sample native functions, where perf is there."""

    mode: str = "eager"
    batch_size: int = 1
    phase: Phase = "decode"
    native: bool | None = None
    """Whether to sample native functions; None: where the answer is not late with it."""


class OperatorsFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `step_seconds` is the whole step on a CPU; on CUDA it is the time until the call returns.

    `kernels` and `launches` are None where `no_device` says why; what follows them is None for modes that are
    not compiled.
    `operators_seconds`, which is `operators_share` of `step_seconds`, are spent in the listed calls: as
    profiled, with `event_seconds` per inner event taken off. The rest is Python, binding and composite
    operators (in compiled modes generated code, guards and wrappers); of it `tail_seconds` lie after the last
    call, where eager frees its tape. `accounted_share` is everything that was seen over the plain step: how
    well the profiler was taken off.
    `prepare_seconds` is building and compiling, 0 once warm. `notes` say what could not be shown.
    """

    mode: str
    effective: str
    reason: str | None
    device: str
    batch_size: int
    batch_bucket: int
    phase: Phase
    step_seconds: Estimate
    profiled_seconds: Estimate
    event_seconds: float
    operators_seconds: float
    operators_share: float
    tail_seconds: float
    accounted_share: float
    dispatch: Dispatch | None
    operators: list[Operator]
    copies: list[Copy]
    syncs: list[Sync]
    kernels: int | None
    launches: int | None
    no_device: str | None
    graphs: int | None = None
    graph_break_count: int | None = None
    graph_breaks: list[GraphBreak] | None = None
    recompiles: int | None = None
    guards: list[Guard] | None = None
    wrapper: WrapperTimes | None = None
    fused_kernels: list[FusedKernel] | None = None
    generated_code: str | None = None
    native: NativeSamples | None = None
    prepare_seconds: float
    notes: list[str]
