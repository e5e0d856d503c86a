"""Which dispatch keys a call passes: its tensors' and the thread's, as far as they have a kernel for it."""

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
    """The keys that the thread's state adds to and takes from every call in a mode."""

    included: KeySet
    excluded: KeySet


class _Notes(nn.Module):
    """Stands in for the model and notes the thread's keys where the model would run."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, device=device))
        self.seen: ThreadKeys | None = None

    def forward(self, *_: object) -> tuple[Tensor, Tensor]:
        included = torch._C._dispatch_tls_local_include_set()
        self.seen = ThreadKeys(included, torch._C._dispatch_tls_local_exclude_set())
        return self.weight, self.weight


def thread_keys(mode: Mode, device: torch.device, precision: Precision) -> ThreadKeys:
    """What the contexts of `mode` do to the thread, seen inside a step of it that is not compiled."""
    plain = Effect(mode.name)
    notes = _Notes(device)
    step = build_step(replace(mode, cpu=plain, cuda=plain), notes, precision=precision)
    step(notes.weight, notes.weight, notes.weight, ())
    assert notes.seen is not None
    return notes.seen


def visited(schema_name: str, tensors: Iterable[Tensor], thread: ThreadKeys) -> list[str]:
    """The keys whose kernels a call of `schema_name` with `tensors` runs through, first to last.

    A key without a kernel of its own, or with one that only falls through, is not visited.
    """
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    for tensor in tensors:
        keys = keys | torch._C._dispatch_keys(tensor)
    keys = (keys | thread.included) - thread.excluded
    passed = []
    stops = _stops(schema_name)
    while (key := keys.highestPriorityTypeId()) != torch._C.DispatchKey.Undefined:
        if key.name in stops:
            passed.append(key.name)
        keys = keys.remove(key)
    return passed


@cache
def _stops(schema_name: str) -> frozenset[str]:
    """Keys at which this operator has a kernel that does something, by the dispatcher's computed table."""
    table = torch._C._dispatch_dump_table(schema_name).splitlines()
    entries = (line.partition(": ") for line in table)
    return frozenset(key for key, _, kernel in entries if kernel and "fallthrough" not in kernel)
