"""The probes by name, with what each teaches; here because the front cannot import what runs them."""

from __future__ import annotations

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
