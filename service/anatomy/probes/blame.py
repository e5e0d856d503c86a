"""Finds the line to blame while the fault happens: from the call itself, the dispatcher or the compiler."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from service.anatomy.operators.dispatch_keys import thread_keys
from service.anatomy.operators.records import OperatorRecord, OperatorRecorder, short_place
from service.anatomy.probes.probed_model import ProbedModel
from service.protocol.modes import MODES

_OWN = Path(__file__).parent
_QUOTED = re.compile(r'File "([^"]+)", line (\d+)')


def line_that_calls(target: CodeType | Callable[..., Any], run: Callable[[], object]) -> str:
    """Our line from which, while `run` runs, a Python code object or a built-in function is entered."""
    found: list[str] = []

    def watch(frame: FrameType, event: str, argument: object) -> None:
        entered = event == "call" and frame.f_code is target
        if not found and (entered or (event == "c_call" and argument is target)):
            found.extend(_own_line(frame))

    previous = sys.getprofile()
    sys.setprofile(watch)
    try:
        run()
    finally:
        sys.setprofile(previous)
    return _one(found, f"a call of {target}")


def records(probed: ProbedModel, run: Callable[[], object]) -> list[OperatorRecord]:
    """Every operator of `run` below autograd, with the line that called it."""
    keys = thread_keys(MODES["inference_mode"], probed.bench.device, probed.bench.precision)
    looking = OperatorRecorder(keys)
    with looking:
        run()
    return looking.seen


def line_of(operator: str, seen: list[OperatorRecord]) -> str:
    """Our line that called `operator`, as the dispatcher saw it."""
    lines = [one.line for one in seen if one.schema_name == operator and one.line and _is_ours(one.line)]
    return _one(lines, operator)


def line_of_break(reasons: list[Any]) -> str:
    """Our line at which the compiler stopped."""
    places = [
        short_place(frame.filename, frame.lineno) for one in reasons for frame in reversed(one.user_stack)
    ]
    return _one([place for place in places if _is_ours(place)], "a graph break")


def line_in(reason: str) -> str:
    """Our line in the stack that the compiler gives with its reason."""
    places = [short_place(file, int(number)) for file, number in _QUOTED.findall(reason)]
    return _one([place for place in reversed(places) if _is_ours(place)], "a recompilation")


def _own_line(frame: FrameType | None) -> Iterator[str]:
    """The innermost frame of ours, from `frame` outwards."""
    while frame is not None:
        if Path(frame.f_code.co_filename).parent == _OWN:
            yield short_place(frame.f_code.co_filename, frame.f_lineno)
            return
        frame = frame.f_back


def _is_ours(place: str) -> bool:
    return place.startswith("service/anatomy/")


def _one(places: list[str], what: str) -> str:
    if not places:
        raise LookupError(f"no line of ours led to {what}: this torch reports it in another way")
    return places[0]
