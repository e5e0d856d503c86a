"""Whose instructions those of a function are: one rule per part of the stack, the first that matches.

What is classed as kernel keeps the name of the rule that classed it (`service.measure.symbols`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from service.measure.cpu_sampler import Place
from service.measure.symbols import rule_of


@dataclass(frozen=True, slots=True)
class Part:
    """Host functions of one kind: `symbol` is searched in the demangled name, `binary` in the file's name."""

    name: str
    symbol: str = ""
    binary: str = ""

    def has(self, function: Place) -> bool:
        """Whether `function` is one of them."""
        file = function.binary.rpartition("/")[2]
        return bool(re.search(self.symbol, function.symbol) and re.search(self.binary, file))


PARTS: tuple[Part, ...] = (
    Part("autograd", symbol=r"\bautograd::|VariableType"),
    Part("Dynamo's guards and frames", symbol=r"\bdynamo(::|_)"),
    Part("Python", binary=r"^(lib)?python|\.cpython-"),
    Part("torch's Python bindings", binary=r"^libtorch_python"),
    Part("dispatcher and operators", binary=r"^(libtorch|libc10)"),
    Part(
        "C and C++ libraries: allocator, locks",
        binary=r"^(libc[.-]|libstdc|libm[.-]|libgcc|ld-|libffi)",
    ),
    Part("generated code", binary=r"\.so"),
)
"""Anything else is `elsewhere`."""


@cache
def part_of(function: Place) -> str:
    """The part that `function` belongs to."""
    if function.side == "kernel":
        return rule_of(function.symbol, function.binary)
    return next((part.name for part in PARTS if part.has(function)), "elsewhere")
