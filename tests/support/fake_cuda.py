"""CUDA on a CPU: a device with its clock, and graphs that are recorded and replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


@dataclass
class FakeDevice:
    """As a `CudaQueue`, whose calls take `issue_seconds` of the host and `step_seconds` of the device.

    `launches` of each call stand in the driver's queue until the device has done the call; with more than
    `most_launches` in it the host waits. `hiccups` makes the calls of these numbers take a second to issue.
    """

    issue_seconds: float
    step_seconds: float
    launches: int = 1
    most_launches: int = 1000
    hiccups: frozenset[int] = frozenset()
    host_ns: float = 0.0
    free_ns: float = 0.0
    calls: int = 0
    pending: deque[float] = field(default_factory=deque)

    def clock(self) -> int:
        return round(self.host_ns)

    def call(self) -> None:
        while self.pending and self.pending[0] <= self.host_ns:
            self.pending.popleft()
        if (len(self.pending) + 1) * self.launches > self.most_launches:
            self.host_ns = max(self.host_ns, self.pending.popleft())
        self.host_ns += (1.0 if self.calls in self.hiccups else self.issue_seconds) * 1e9
        self.free_ns = max(self.free_ns, self.host_ns) + self.step_seconds * 1e9
        self.pending.append(self.free_ns)
        self.calls += 1

    def hold(self, seconds: float) -> None:
        self.free_ns = max(self.free_ns, self.host_ns) + seconds * 1e9

    def synchronise(self) -> None:
        self.host_ns = max(self.host_ns, self.free_ns)

    def event(self) -> FakeEvent:
        return FakeEvent(self)


@dataclass
class FakeEvent:
    """Reached by the device when it has done all that was issued before."""

    device: FakeDevice
    reached_ns: float = 0.0

    def record(self, stream: object = None) -> None:
        self.reached_ns = max(self.device.free_ns, self.device.host_ns)

    def query(self) -> bool:
        return self.device.host_ns >= self.reached_ns

    def synchronize(self) -> None:
        self.device.host_ns = max(self.device.host_ns, self.reached_ns)

    def elapsed_time(self, end_event: FakeEvent) -> float:
        return (end_event.reached_ns - self.reached_ns) / 1e6


def pretend_devices(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """As many devices as `count`, of which none can be used."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


Result = tuple[Tensor, Tensor]
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any]


class FakeGraphs:
    """Records as `record_cuda_graph` does. `recorded` counts graphs, `replayed` replays.

    As in a real graph, nothing of Python runs at a replay, and a tensor is what its memory then holds.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.replayed = 0

    def record(self, run: Callable[[], Result]) -> tuple[Callable[[], object], Result]:
        run()
        calls: list[Call] = []
        with _Recording(calls):
            result = run()
        self.recorded += 1

        def replay() -> None:
            self.replayed += 1
            with torch.no_grad():
                for func, arguments, options, outputs in calls:
                    _write(outputs, func(*arguments, **options))

        return replay, result


class _Recording(TorchDispatchMode):
    def __init__(self, calls: list[Call]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        outputs = func(*args, **options)
        self._calls.append((func, args, options, outputs))
        return outputs


def _write(into: object, new: object) -> None:
    """The values of `new` into the tensors of `into`; a view writes its own memory onto itself."""
    for target, value in zip(tree_flatten(into)[0], tree_flatten(new)[0], strict=True):
        if isinstance(target, Tensor) and target.data_ptr() != value.data_ptr():
            target.copy_(value)
