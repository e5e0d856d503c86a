"""The sync points that CUDA's debug mode reports, and samples that begin on an idle device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from service.anatomy.operators.device_work import reported_waits
from service.anatomy.operators.wrapper_times import time_wrappers

NOTICE = (
    "Synchronization debug mode is a prototype feature and does not yet detect all synchronizing operations"
)
WAIT = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:150.)"


class FakeCuda:
    """The order of waits and calls, and sync debug mode as torch behaves: a notice when it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int = 0) -> None:
        self.seen: list[str] = []
        self._waits = waits
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.seen.append("wait"))
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self._set)

    def _set(self, mode: int | str) -> None:
        self.seen.append(f"mode {mode}")
        warnings.warn(NOTICE, stacklevel=1)

    def bench(self) -> Any:
        return SimpleNamespace(device=torch.device("cuda"), synchronise=torch.cuda.synchronize)

    def case(self) -> Any:
        return SimpleNamespace(
            call=self._call,
            call_seconds=self._call,
            buffers=SimpleNamespace(token=SimpleNamespace(is_cuda=True)),
        )

    def _call(self) -> float:
        self.seen.append("call")
        for _ in range(self._waits):
            warnings.warn(WAIT, stacklevel=1)
        return 1e-4


@pytest.mark.parametrize("waits", [0, 2])
def test_a_step_has_as_many_waits_as_it_makes_and_the_modes_own_notice_is_none(
    monkeypatch: pytest.MonkeyPatch, waits: int
) -> None:
    fake = FakeCuda(monkeypatch, waits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines = reported_waits(fake.bench(), fake.case())
    assert len(lines) == waits
    assert all("test_device_work.py" in line for line in lines)
    assert fake.seen == ["wait", "mode warn", "call", "mode 0"]


def test_every_sample_of_the_wrappers_begins_on_an_idle_device(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch)
    graph = SimpleNamespace(current_callable=lambda _: fake.seen.append("call"))
    clock: Callable[[], float] = iter(range(1000)).__next__
    time_wrappers(cast("Any", fake.case()), graph, [], clock)
    assert fake.seen[::2] == ["wait"] * (len(fake.seen) // 2)
    assert fake.seen[1::2] == ["call"] * (len(fake.seen) // 2)
    assert len(fake.seen) > 6
