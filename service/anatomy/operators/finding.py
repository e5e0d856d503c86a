"""Arguments and finding of the study of a step's operators."""

from __future__ import annotations

from typing import Literal

import msgspec

from service.anatomy.median_seconds import MedianSeconds, finite
from service.anatomy.operators.graph_breaks import GraphBreak
from service.anatomy.operators.guards import Guard
from service.anatomy.operators.lowering import Lowering
from service.anatomy.operators.native import NativeSamples
from service.anatomy.operators.rows import Copy, Operator, Sync
from service.anatomy.operators.sources import FusedKernel
from service.anatomy.operators.wrapper_times import WrapperTimes
from service.measure.kernel_table import KernelTable
from service.measure.split import DispatchSplit
from service.protocol.messages import Phase


class OperatorsArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which step is listed. `lowering` adds what it is on its way down, with the table of `operator`."""

    mode: str = "eager"
    batch_size: int = 1
    phase: Phase = "decode"
    native: bool = True
    """Whether to list native functions."""

    lowering: bool = False
    operator: str = "aten::mul.Tensor"


class DispatchShare(msgspec.Struct, frozen=True, kw_only=True):
    """A `DispatchSplit`: `seconds` of dispatch with its 95 % bounds, and its share of dispatch + kernel."""

    seconds: float
    low: float | None
    high: float | None
    share: float
    kernel_seconds: float
    source: Literal["sampled", "measured"]

    @classmethod
    def of(cls, split: DispatchSplit) -> DispatchShare:
        """With the keys that it has over HTTP."""
        return cls(
            seconds=split.dispatch.value,
            low=finite(split.dispatch.low),
            high=finite(split.dispatch.high),
            share=split.dispatch.value / (split.dispatch.value + split.kernel.value),
            kernel_seconds=split.kernel.value,
            source=split.source,
        )


class OperatorsFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `step_seconds` is the whole step on a CPU; on CUDA it is the time until the call returns,
    before the profiler's first session in this study, which may lengthen all later steps.

    `kernels`, `launches` and `kernel_table` are None on a CPU, and `kernels` where the profiler lost some;
    `no_device` has the reason. The fields from `graphs` to `generated_code` are None for modes that are not
    compiled. `lowering` is there where it was asked for.
    `operators_seconds` are spent in the listed calls: as profiled, less `event_seconds` per inner event.
    `operators_share` and `accounted_share` are of the plain steps that alternated with the profiled ones
    (on a CPU these are `step_seconds`): that of the listed calls, and that of all parts. The rest is Python,
    binding and composite operators (in compiled modes generated code, guards and wrappers); `tail_seconds`
    of it come after the last call, where eager frees its tape.
    `prepare_seconds` is building and compiling, 0 once warm. `notes` list what could not be shown.
    """

    mode: str
    effective: str
    reason: str | None
    device: str
    batch_size: int
    batch_bucket: int
    phase: Phase
    step_seconds: MedianSeconds
    profiled_seconds: MedianSeconds
    event_seconds: float
    operators_seconds: float
    operators_share: float
    tail_seconds: float
    accounted_share: float
    dispatch: DispatchShare | None
    operators: list[Operator]
    copies: list[Copy]
    syncs: list[Sync]
    kernels: int | None
    launches: int | None
    kernel_table: KernelTable | None = None
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
    lowering: Lowering | None = None
    prepare_seconds: float
    notes: list[str]
