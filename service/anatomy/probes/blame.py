"""Finds the line to blame while the fault happens: from a call, the dispatcher or the compiler."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

from service.anatomy.operators.dispatch_keys import thread_keys
from service.anatomy.operators.records import OperatorRecord, OperatorRecorder
from service.anatomy.operators.source_lines import SourceLine
from service.anatomy.probes.probed_model import ProbedModel
from service.protocol.modes import MODES

_PROBES = __name__.rpartition(".")[0]
"""The package of the probes, which their faults are in."""

_QUOTED = re.compile(r'File "([^"]+)", line (\d+)')


def line_that_calls(target: CodeType | Callable[..., Any], run: Callable[[], object]) -> str:
    """The probe's line from which `run` first enters `target`, a code object or a built-in function."""
    found: list[SourceLine] = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        entered = event == "call" and frame.f_code is target
        if not found and (entered or (event == "c_call" and argument is target)):
            found.extend(_outwards(frame))

    previous = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(previous)
    return _first(found, f"a call of {target}")


def records(probed: ProbedModel, run: Callable[[], object]) -> list[OperatorRecord]:
    """Every operator of `run` below autograd, with the line that called it."""
    keys = thread_keys(MODES["inference_mode"], probed.bench.device, probed.bench.precision)
    recorder = OperatorRecorder(keys)
    with recorder:
        run()
    return recorder.seen


def line_of(operator: str, seen: list[OperatorRecord]) -> str:
    """The probe's line that called `operator`, as the dispatcher saw it."""
    return _first([one.line for one in seen if one.schema_name == operator and one.line], operator)


def line_of_break(reasons: list[Any]) -> str:
    """The probe's line at which the compiler stopped; `reasons` are Dynamo's."""
    frames = [frame for one in reasons for frame in reversed(one.user_stack)]
    return _first([SourceLine.in_file(frame.filename, frame.lineno) for frame in frames], "a graph break")


def line_that_raised(error: BaseException) -> str:
    """The probe's innermost line on the way to `error`."""
    lines = [SourceLine.of_frame(frame, number) for frame, number in walk_tb(error.__traceback__)]
    return _first(lines[::-1], type(error).__name__)


def line_in(reason: str) -> str:
    """The probe's innermost line in the stack that Dynamo's `reason` of a recompilation quotes."""
    lines = [SourceLine.in_file(file, int(number)) for file, number in _QUOTED.findall(reason)]
    return _first(lines[::-1], "a recompilation")


def _outwards(frame: FrameType | None) -> Iterator[SourceLine]:
    while frame is not None:
        yield SourceLine.of_frame(frame)
        frame = frame.f_back


def _first(lines: Iterable[SourceLine], what: str) -> str:
    """The first of `lines` in a probe. Raises LookupError where there is none."""
    found = next((line for line in lines if line.is_in(_PROBES)), None)
    if found is None:
        raise LookupError(f"no line of a probe led to {what}: this torch reports it in another way")
    return str(found)
