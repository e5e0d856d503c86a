"""The rows of a step's finding: operators with their keys and times, copies, sync points."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal

import msgspec

from service.anatomy.operators.calls import OperatorCall
from service.anatomy.operators.records import SAME_CALL, OperatorRecord
from service.anatomy.operators.times import OperatorTimes

SyncKind = Literal["item", "nonzero", "equal", "device_to_host", "reported"]
SYNCHRONISING: dict[str, SyncKind] = {
    "aten::_local_scalar_dense": "item",
    "aten::nonzero": "nonzero",
    "aten::equal": "equal",
}
"""Operators that need a value on the host before they return."""


class Operator(msgspec.Struct, frozen=True, kw_only=True):
    """One call below autograd, in order.

    `keys` are the dispatch keys whose kernels it runs; `within` the enclosing composite operators.
    `host_seconds` is the call with all inner calls and, on a CPU, its kernel; `lead_seconds` the time since
    the call before. `cumulative_seconds` sums `host_seconds`.
    """

    name: str
    overload: str
    keys: list[str] | None
    shapes: list[list[int]]
    strides: list[list[int]]
    dtypes: list[str]
    host_seconds: float
    cumulative_seconds: float
    lead_seconds: float
    is_view: bool | None
    inner_calls: int
    within: list[str]
    line: str | None


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One `aten::copy_`: `operator` is the index in `operators` of the call that made it."""

    operator: int
    name: str
    bytes: int
    line: str | None


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """A point where the host waits for a value of the device; on a CPU there is no wait."""

    operator: int | None
    kind: SyncKind
    line: str | None


def operator_rows(
    calls: tuple[OperatorCall, ...], records: list[OperatorRecord] | None, times: OperatorTimes
) -> list[Operator]:
    """The rows in order; keys, views and lines are None without `records`."""
    seen: list[OperatorRecord | None] = list(records) if records is not None else [None] * len(calls)
    sums = accumulate(times.own_seconds)
    return [
        Operator(
            name=call.name,
            overload=call.overload or "default",
            keys=record.keys if record else None,
            shapes=[list(o.shape) for o in call.operands],
            strides=[list(o.strides) for o in call.operands],
            dtypes=[str(o.dtype).removeprefix("torch.") for o in call.operands],
            host_seconds=own,
            cumulative_seconds=total,
            lead_seconds=lead,
            is_view=record.is_view if record else None,
            inner_calls=call.inner,
            within=list(call.within),
            line=str(record.line) if record and record.line else None,
        )
        for call, record, own, total, lead in zip(
            calls, seen, times.own_seconds, sums, times.lead_seconds, strict=True
        )
    ]


def agreeing(calls: tuple[OperatorCall, ...], records: list[OperatorRecord]) -> bool:
    """Whether both have the same calls in the same order, but for what a dispatch mode itself changes."""
    return [SAME_CALL.get(call.name, call.name) for call in calls] == [
        record.schema_name.partition(".")[0] for record in records
    ]


def copies(calls: tuple[OperatorCall, ...], operators: list[Operator]) -> list[Copy]:
    """Every copy of the step, including those that an operator's kernel makes."""
    return [
        Copy(operator=place, name=call.name, bytes=target.bytes, line=operators[place].line)
        for place, call in enumerate(calls)
        for target in call.copied
    ]


def syncs(operators: list[Operator], records: list[OperatorRecord] | None) -> list[Sync]:
    """Calls of `SYNCHRONISING`, and copies from a device to the host."""
    found = []
    for place, operator in enumerate(operators):
        kind = SYNCHRONISING.get(operator.name)
        if kind is None and records is not None and records[place].to_host:
            kind = "device_to_host"
        if kind is not None:
            found.append(Sync(operator=place, kind=kind, line=operator.line))
    return found
