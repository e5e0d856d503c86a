"""Reads Inductor's generated code: its kernels, the operators fused into each, and their calls."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from typing import Literal

import msgspec
import torch

_FUSED = re.compile(r"\b((?:cpp|triton_[a-z]+)_fused_\w+?)(?:\.run)?\(")
_LIBRARY = re.compile(
    r"\b(?:extern_kernels\.(\w+)|torch\.ops\.(\w+\.\w+)\.\w+|aoti_torch_(?:cpu|cuda)_(\w+))\("
)
_ORIGINAL = re.compile(r"Original ATen: \[([^\]]*)\]")
_FUSED_NAME = re.compile(r"^(?:cpp|triton_[a-z]+)_fused_(\w+?)_\d+$")


class FusedKernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel that the generated code calls `calls` times per step.

    `generated` by Inductor, or a `library`'s. `operators` are the ATen operators that it computes, each
    once: Inductor writes them above a call, or into the kernel's name.
    """

    name: str
    kind: Literal["generated", "library"]
    operators: list[str]
    calls: int


def fused_kernels(code: str) -> list[FusedKernel]:
    """The kernels of one graph's generated Python or C++, in the order of their first call."""
    calls: Counter[tuple[str, str, tuple[str, ...]]] = Counter()
    written: dict[str, tuple[str, ...]] = {}
    comment: tuple[str, ...] = ()
    for line in code.splitlines():
        if found := _ORIGINAL.search(line):
            comment = _names(found[1])
            continue
        if "async_compile." in line:
            if comment and "triton" in line:
                written[line.split("=")[0].strip()] = comment
            comment = ()
            continue
        if '"C"' in line or "assert_size_stride" in line:
            continue
        if fused := _FUSED.search(line):
            name = fused[1]
            calls[name, "generated", written.get(name) or fused_operators(name)] += 1
        elif comment and (library := _LIBRARY.search(line)):
            calls[_library_name(library), "library", comment] += 1
            comment = ()
    return [
        msgspec.convert({"name": name, "kind": kind, "operators": operators, "calls": count}, FusedKernel)
        for (name, kind, operators), count in calls.items()
    ]


def _names(listed: str) -> tuple[str, ...]:
    return tuple(name.strip().replace(".", "::", 1) for name in listed.split(",") if name.strip())


def _library_name(found: re.Match[str]) -> str:
    name = found[1] or found[2] or found[3]
    return "aten::" + name.removeprefix("aten.").removesuffix("_out")


def fused_operators(kernel: str) -> tuple[str, ...]:
    """The operators in a kernel's name, which Inductor joins in alphabetical order, each once.

    The name is split into as few ATen operators as possible; empty where it cannot be split.
    """
    found = _FUSED_NAME.match(kernel)
    return tuple(f"aten::{name}" for name in _split(found[1], "")) if found else ()


def _split(text: str, after: str) -> tuple[str, ...]:
    best: tuple[str, ...] = ()
    for end in range(len(text), 0, -1):
        if (end < len(text) and text[end] != "_") or text[:end] not in _aten() or text[:end] <= after:
            continue
        if end == len(text):
            return (text,)
        rest = _split(text[end + 1 :], text[:end])
        if rest and (not best or 1 + len(rest) < len(best)):
            best = (text[:end], *rest)
    return best


@cache
def _aten() -> frozenset[str]:
    names = torch._C._dispatch_get_all_op_names()
    return frozenset(name[6:].partition(".")[0] for name in names if name.startswith("aten::"))
