"""The expressions and probes that studies know, as text: the front cannot import what runs them."""

from __future__ import annotations

import re
from typing import Literal

OPERATOR_CALLS: dict[str, str] = {
    "add": "torch.add(x, y)",
    "mul": "torch.mul(x, y)",
    "exp": "torch.exp(x)",
    "relu": "torch.relu(x)",
    "sum": "torch.sum(x)",
    "softmax": "torch.softmax(x, -1)",
    "transpose": "torch.transpose(x, 0, 1)",
    "matmul": "torch.matmul(x, weight)",
    "layer_norm": "F.layer_norm(x, shape, weight, bias)",
}
"""The calls that the operator study knows, by name; `F` is `torch.nn.functional`."""

TAPE_EXPRESSIONS: dict[str, str] = {
    "matmul": "x @ w",
    "linear-relu-sum": "(x @ w + b).relu().sum()",
    "layer-norm": "F.layer_norm(x @ w, (64,))",
    "gate": "F.silu(x @ w) * x",
    "exp": "x.exp()",
    "scale": "x * 2",
}
"""Whose tape is read, over `x` [32, 64], an activation that requires grad, `w` [64, 64] and `b` [64]."""

OF_THE_MODEL = ("block", "step")
"""Parts of the served model whose tape is read."""

_WORD = re.compile(r"[A-Za-z_]\w*")


def operator_named(text: str) -> str:
    """The name of the known call that `text` is, whatever its arguments are called. It is compared with the
    list, never evaluated. Raises ValueError, which lists the known calls, for any other.
    """
    known = {_numbered(call): name for name, call in OPERATOR_CALLS.items()}
    name = known.get(_numbered(text)) if len(text) <= LONGEST_CALL else None
    if name is None:
        raise ValueError(f"no operator call '{text[:64]}'; try one of {'; '.join(OPERATOR_CALLS.values())}")
    return name


def _numbered(call: str) -> tuple[str, str]:
    """Its function, and its arguments with a number in place of each name."""
    function, _, arguments = call.replace(" ", "").partition("(")
    numbers: dict[str, str] = {}
    return function, _WORD.sub(lambda word: numbers.setdefault(word[0], f"${len(numbers)}"), arguments)


LONGEST_CALL = 80
"""Characters of a call's text; no known one has as many."""

OF_MODULES = ("operators", "timeline", "budget", "layers", "operator", "memory", "probes")
"""The studies of a user's module. The others are of parts that only a language model has."""


def not_of_modules(study: str) -> str | None:
    """Why the study called `study` cannot be run on a user's module, and which can; None where it can."""
    if study in OF_MODULES:
        return None
    return f"{study} is a study of language models: of a module try one of {', '.join(OF_MODULES)}"


ProbeName = Literal[
    "graph-break", "recompile", "unbucketed-shape", "sync-point", "hidden-copy", "allocator-churn",
    "grad-mode-mismatch", "thread-change", "custom-op", "autocast",
]  # fmt: skip

PROBES: dict[str, str] = {
    "graph-break": "a call that the compiler cannot trace splits one graph into several, with Python between",
    "recompile": "a Python number that a step reads is a guard: each new value compiles the step once more",
    "unbucketed-shape": "padding to a bucket costs a little work; every size of its own costs a compilation",
    "sync-point": "an `.item()` makes the host wait for the device, so that nothing is issued ahead any more",
    "hidden-copy": "a view that is not contiguous is copied silently where an operator needs it",
    "allocator-churn": "a new buffer in every step is an allocation each time; a buffer kept is none",
    "grad-mode-mismatch": "what was compiled under one grad mode is compiled again when called under another",
    "thread-change": "a thread count changed after warm-up fails a guard: the step is compiled again",
    "custom-op": "a custom operator with a fake implementation compiles without a break; fusion stops at it",
    "autocast": "autocast intercepts every operator and casts its inputs, in every step",
}
"""The names are those of `POST /v1/probes/{name}`."""
