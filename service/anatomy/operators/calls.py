"""The calls into the dispatcher of a step, from torch's profiler, with their nesting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._profiler import RecordScope, _EventType, _ExperimentalConfig
from torch.autograd.profiler import profile, record_function

from service.measure.cases import Case
from service.step.profiling import attach_profiler
from service.step.trace import STEP_MARK

COPY = "aten::copy_"


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor argument of an operator: sizes and strides in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of all its elements."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One call of an operator below autograd, in its place in the step.

    `within` names the enclosing composite operators, outermost first. `inner` counts the calls that its
    kernel makes into the dispatcher, and `copied` has the destination of every copy among them, its own
    included. `begin_ns` is on the profiler's clock.
    """

    name: str
    overload: str
    within: tuple[str, ...]
    begin_ns: int
    seconds: float
    inner: int
    operands: tuple[Operand, ...]
    copied: tuple[Operand, ...]

    @property
    def schema_name(self) -> str:
        """The dispatcher's name: `aten::add.Tensor`, or `aten::mm` for the default overload."""
        return f"{self.name}.{self.overload}" if self.overload else self.name


@dataclass(frozen=True, slots=True)
class StepCalls:
    """One marked step: its calls in order, its wall time under the profiler and its number of events."""

    calls: tuple[OperatorCall, ...]
    begin_ns: int
    seconds: float
    events: int


def record(case: Case, steps: int, operands: bool = False) -> list[StepCalls]:
    """Run `steps` steps under the profiler. `operands` records shapes too, which slows it."""
    # Not torch.profiler.profile: in a single cycle it reads every event twice, which takes longer than all
    # steps.
    config = _ExperimentalConfig(capture_overload_names=True)
    session = profile(record_shapes=operands, experimental_config=config)
    attach_profiler(case.buffers.token.device)
    case.call()
    with session:
        for _ in range(steps):
            with record_function(STEP_MARK):
                case.call()
    results: Any = session.kineto_results
    overloads = {event.correlation_id(): event.overload_name() for event in results.events()}
    marks = [event for event in results.experimental_event_tree() if event.name == STEP_MARK]
    return [_step(mark, overloads) for mark in marks]


def _step(mark: Any, overloads: dict[int, str]) -> StepCalls:  # noqa: ANN401 - an event of torch's tree
    return StepCalls(
        calls=tuple(_calls(mark.children, overloads, ())),
        begin_ns=mark.start_time_ns,
        seconds=mark.duration_time_ns / 1e9,
        events=sum(1 for _ in _below(mark)),
    )


def _calls(events: list[Any], overloads: dict[int, str], within: tuple[str, ...]) -> Iterator[OperatorCall]:
    """The calls of a composite operator replace it, because it has no kernel."""
    for event in events:
        if not _is_operator(event):
            yield from _calls(event.children, overloads, within)
            continue
        overload = overloads.get(event.correlation_id, "")
        if is_composite(f"{event.name}.{overload}" if overload else event.name):
            yield from _calls(event.children, overloads, (*within, event.name))
        else:
            yield _call(event, overload, within)


def _call(event: Any, overload: str, within: tuple[str, ...]) -> OperatorCall:  # noqa: ANN401
    inner = [other for other in _below(event) if _is_operator(other)]
    copies = [other for other in (event, *inner) if other.name == COPY]
    return OperatorCall(
        name=event.name,
        overload=overload,
        within=within,
        begin_ns=event.start_time_ns,
        seconds=event.duration_time_ns / 1e9,
        inner=len(inner),
        operands=_operands(event),
        copied=tuple(_operands(copy)[0] for copy in copies if _operands(copy)),
    )


def is_composite(schema_name: str) -> bool:
    """Whether the operator only calls others (CompositeImplicitAutograd). False where unknown."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if not torch._C._dispatch_has_kernel(schema_name):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(schema_name, key))


def _is_operator(event: Any) -> bool:  # noqa: ANN401
    return (
        event.tag == _EventType.TorchOp
        and event.extra_fields.scope == RecordScope.FUNCTION
        and "::" in event.name
    )


def _below(event: Any) -> Iterator[Any]:  # noqa: ANN401
    for child in event.children:
        yield child
        yield from _below(child)


def _operands(event: Any) -> tuple[Operand, ...]:  # noqa: ANN401
    tensors = []
    for argument in event.extra_fields.inputs:
        for item in argument if isinstance(argument, list) else [argument]:
            if hasattr(item, "sizes") and not isinstance(item, Tensor):
                tensors.append(Operand(tuple(item.sizes), tuple(item.strides), item.dtype))
    return tuple(tensors)
