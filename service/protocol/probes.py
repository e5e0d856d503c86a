"""The probes by name, with what each teaches; here because the front cannot import what runs them."""

from __future__ import annotations

PROBES: dict[str, str] = {
    "graph-break": "a call that the compiler cannot trace splits one graph into several, with Python between",
    "recompile": "a Python number that a step reads is a guard: each new value compiles the step once more",
    "unbucketed-shape": "padding to a bucket costs a little work; every size of its own costs a compilation",
    "sync-point": "an `.item()` makes the host wait for the device, so that nothing is issued ahead any more",
    "hidden-copy": "a view that is not contiguous is copied where an operator needs it, and no line says it",
    "allocator-churn": "a new buffer in every step asks the allocator each time; a buffer kept does not",
    "grad-mode-mismatch": "what was compiled under one grad mode is compiled again when called under another",
    "thread-change": "a thread count changed after warm-up is a guard that fails: compiled code is made anew",
    "custom-op": "an operator of one's own with a fake compiles without a break; fusion stops at it",
    "autocast": "autocast looks at every operator and casts what it is given, in each step again",
}
"""The names are those of `POST /v1/probes/{name}`."""
