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
    "view-keeps-storage": "a small view that is kept keeps its whole storage; a clone keeps its own bytes",
    "results-kept": "results kept until a step ends: an operator cannot write into memory of earlier ones",
    "version-counter": "a saved tensor that is changed in place has another version: backward fails",
    "inference-tensor-in-autograd": "autograd saves no tensor of inference mode, but its clone",
    "channels-last": "where a convolution's input and weight differ in layout, each call copies one",
    "dynamic-shapes": "each new size compiles a step again, unless its dimension is marked as dynamic",
    "cpp-extension": "an operator in C++ calls others without Python; one in Python enters many frames",
    "fragmentation": "free memory in pieces has no room for a large tensor: the device is asked for more",
    "pinned-copy": "a copy from pageable memory is staged while the host waits; from pinned memory not",
}
"""The names are those of `POST /v1/probes/{name}`."""

NOT_ON_CPU: dict[str, str] = {
    "fragmentation": "a CPU's tensors get memory from the C library, which has no segments to split",
    "pinned-copy": "a CPU's tensors are in the host's memory already: nothing is copied to a device",
}
"""Probes that need CUDA, with the reason why a CPU cannot show them."""
