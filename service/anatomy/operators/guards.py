"""The guards of a compiled step: the checks before each call, and the lines that caused them."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from service.step.callables import Step

_LEAF = re.compile(r"\+- ([A-Z][A-Z_]*): (.*)$")
_LINE = re.compile(r"([\w./-]+\.py:\d+)")


class Guard(msgspec.Struct, frozen=True, kw_only=True):
    """One check. `kind` is torch's name for it; `line` the code that caused it."""

    kind: str
    expression: str
    line: str | None


def compiled_function(step: Step) -> Any:  # noqa: ANN401 - a function
    """The function inside `step` that `torch.compile` was called with; None where there is none."""
    pending: list[Any] = [step]
    while pending:
        current = pending.pop()
        if hasattr(current, "_torchdynamo_orig_callable"):
            return current._torchdynamo_orig_callable
        for cell in getattr(current, "__closure__", None) or ():
            if callable(cell.cell_contents):
                pending.append(cell.cell_contents)
    return None


def entries(step: Step) -> list[Any]:
    """The compiled cache entries of `step`; every one after the first is a recompile."""
    function = compiled_function(step)
    return list(_debug_get_cache_entry_list(function.__code__)) if function is not None else []


def read_guards(entry: Any) -> list[Guard]:  # noqa: ANN401 - one of `entries`
    """Every leaf of an entry's guard tree, in the order in which they are checked."""
    found = (_LEAF.search(line) for line in str(entry.guard_manager).splitlines())
    return [_guard(leaf[1], leaf[2]) for leaf in found if leaf]


def _guard(kind: str, text: str) -> Guard:
    expression, _, comment = text.partition("  # ")
    lines = _LINE.findall(comment)
    line = "/".join(lines[-1].split("/")[-2:]) if lines else None
    return Guard(kind=kind, expression=expression.strip(), line=line)
