"""Arguments and finding of the study of one operator's call."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from service.protocol.modes import GradMode
from service.statistics.intervals import Interval


class OperatorCallArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of `protocol.expressions.OPERATOR_CALLS` on tensors of [size, size], and the state of torch.

    `grad`: grad mode on (`enabled`), off (`no_grad`), or `inference_mode`. `autocast` is to bfloat16, and
    needs float32 tensors. `rounds` are the repeats behind every interval.
    """

    expression: str = "torch.add(x, y)"
    size: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 64
    dtype: Literal["float32", "bfloat16"] = "float32"
    grad: GradMode = "enabled"
    autocast: bool = False
    requires_grad: bool = True
    rounds: Annotated[int, msgspec.Meta(ge=6, le=500)] = 15


class ArgumentTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor argument, and the dispatch keys that it brings, highest priority first."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    requires_grad: bool
    keys: list[str]


class VisitedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatch key whose kernel the call ran. `kind` is how torch came to that kernel, in its own words:
    `kernel`, `autograd kernel`, `default backend kernel` (of every backend), `backend fallback` or `math
    kernel` (composite: it only calls other operators).
    """

    key: str
    kind: str


class DispatchedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One entry into the dispatcher, in order; `depth` counts the calls around it, 0 for the user's own.

    `keys` are those visited, first to last. None inside a backend's kernel, where the arguments are no longer
    the user's: what such a call visits is not known.
    """

    operator: str
    depth: int
    keys: list[VisitedKey] | None


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the operator's dispatch table, as torch computes it, for a key of its tensors or the thread.

    `kind` None: the key has no kernel or falls through to the next one. `source`: the file of torch's own
    build that registered the kernel, and its line. `in_key_set`: the call is dispatched on this key too.
    """

    key: str
    kind: str | None
    source: str | None
    in_key_set: bool


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the call's time, in the order in which the call passes them.

    The names: `python` (torch's own Python around the call), `binding` (arguments parsed, overload chosen),
    `autocast`, `autograd`; then dispatch to the backend: `dispatcher` (one pass), `operator` (further passes,
    shapes, types), `allocator`; then `launch` and `kernel`. `microseconds` is a median over rounds with its
    95 % interval, None where it cannot be separated on this device, with the reason in `why_not`;
    `running_microseconds` is the sum up to here, with an interval of its own, None where this slice is not in
    it. `in_sum` False: switched off here, or beside the host. `keys` are the visited dispatch keys whose
    kernels this slice is the time of. `method` is the experiment that separates it.
    """

    name: str
    microseconds: Interval | None
    running_microseconds: Interval | None
    in_sum: bool
    keys: list[str]
    method: str
    why_not: str | None


class OperatorCallFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One operator's call: the keys that it visits, and what each part of it takes.

    `included` and `excluded` are the keys that the thread's state adds to every call and takes away.
    `key_set`, highest priority first, is what the user's call is dispatched on: the keys of its tensors and
    those included, less those excluded. `calls[0]` is that call; those after it are what its kernels call.
    `sum_microseconds` and `whole_microseconds` (the whole call, measured apart) check each other: `agreement`
    is sum / whole, and `agrees` whether that is within 15 % of 1. On CUDA both are of the host's time.
    """

    operator: str
    expression: str
    device: str
    threads: int
    size: int
    dtype: str
    grad: GradMode
    autocast: bool
    requires_grad: bool
    rounds: int
    arguments: list[ArgumentTensor]
    included: list[str]
    excluded: list[str]
    key_set: list[str]
    calls: list[DispatchedCall]
    table: list[TableRow]
    slices: list[Slice]
    sum_microseconds: Interval
    whole_microseconds: Interval
    agreement: Interval
    agrees: bool
    notes: list[str]
