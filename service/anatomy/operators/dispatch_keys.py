"""The dispatch keys that a call passes: those of its tensors and thread that have a kernel for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from service.protocol.modes import Effect, Mode
from service.step.callables import build_step
from service.step.precision import Precision

KeySet = Any
"""torch's own `DispatchKeySet`."""


@dataclass(frozen=True, slots=True)
class ThreadKeys:
    """The dispatch keys that thread-local state includes in and excludes from every call in a mode."""

    included: KeySet
    excluded: KeySet


class _KeyRecorder(nn.Module):
    """Takes the model's place and records the thread's keys in its forward."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device=device))
        self.seen: ThreadKeys | None = None

    def forward(self, *_: object) -> tuple[Tensor, Tensor]:
        included = torch._C._dispatch_tls_local_include_set()
        self.seen = ThreadKeys(included, torch._C._dispatch_tls_local_exclude_set())
        return self.weight, self.weight


def thread_keys(mode: Mode, device: torch.device, precision: Precision) -> ThreadKeys:
    """The keys that the contexts of `mode` set, read inside an uncompiled step of it."""
    plain = Effect(mode.name)
    recorder = _KeyRecorder(device)
    step = build_step(replace(mode, cpu=plain, cuda=plain), recorder, precision=precision)
    step(recorder.weight, recorder.weight, recorder.weight, ())
    assert recorder.seen is not None
    return recorder.seen


def visited(schema_name: str, tensors: Iterable[Tensor], thread: ThreadKeys) -> list[str]:
    """The keys whose kernels a call of `schema_name` with `tensors` runs, first to last.

    A key without a kernel, or with a fallthrough kernel, is left out.
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for tensor in tensors:
        keys = keys | torch._C._dispatch_keys(tensor)
    keys = (keys | thread.included) - thread.excluded
    passed = []
    with_kernel = _keys_with_kernel(schema_name)
    while (key := keys.highestPriorityTypeId()) != torch._C.DispatchKey.Undefined:
        if key.name in with_kernel:
            passed.append(key.name)
        keys = keys.remove(key)
    return passed


@cache
def _keys_with_kernel(schema_name: str) -> frozenset[str]:
    """Keys with a kernel for this operator that is no fallthrough, by the dispatcher's computed table."""
    table = torch._C._dispatch_dump_table(schema_name).splitlines()
    entries = (line.partition(": ") for line in table)
    return frozenset(key for key, _, kernel in entries if kernel and "fallthrough" not in kernel)
