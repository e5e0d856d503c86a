"""Kernel time beside the profiler's own sum, from sessions as a GPU would record them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._C._autograd import DeviceType

from service.proof import split
from service.proof.split import STEPS, kernel_seconds
from service.step import profiling
from service.step.trace import LEAD_MARK, STEP_MARK, Event, ProfiledStep
from tests.step.made_traces import KERNEL_US, KERNELS, graph_id, replays

CPU = torch.device("cpu")


class Session:
    """What is asked of a session: the profiler's own table, in microseconds of the device."""

    class Line:
        def __init__(self, key: str, microseconds: float) -> None:
            self.key = key
            self.self_device_time_total = microseconds
            self.device_type = DeviceType.CUDA

    def key_averages(self) -> list[Line]:
        others = [self.Line(name, 1e6) for name in ("Memcpy DtoD", "Memset", STEP_MARK, LEAD_MARK)]
        return [self.Line("k", STEPS * KERNELS * KERNEL_US), *others]


def of_the_next_launch(step: int) -> int:
    return graph_id((step + 1) % STEPS)


def found(monkeypatch: pytest.MonkeyPatch, events: list[Event]) -> tuple[float, float] | None:
    case: Any = type("Case", (), {"call": None})
    monkeypatch.setattr(split, "record_session", lambda *_: Session())
    monkeypatch.setattr(split, "chrome_events", lambda _: events)
    return kernel_seconds(CPU, case)


def test_neither_sum_has_what_separates_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = pytest.approx(STEPS * KERNELS * KERNEL_US / 1e6)
    for ids in (graph_id, of_the_next_launch):
        assert found(monkeypatch, replays(STEPS, ids)) == (seconds, seconds)


def test_replays_that_nothing_separates_have_no_kernel_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, replays(STEPS, of_the_next_launch, separated=False)) is None
    assert found(monkeypatch, []) is None


def test_the_steps_of_its_session_are_separated_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Event] = []

    class OnTheHost(profiling.Separator):
        def __init__(self, device: torch.device, copies: bool = False) -> None:
            super().__init__(device, copies)
            self._value = torch.zeros(1)

        def wait(self) -> None:
            pass

    def noted(events: list[Event], cuda: bool) -> list[ProfiledStep]:
        recorded.extend(events)
        return []

    case: Any = type("Case", (), {"call": staticmethod(lambda: torch.zeros(1).neg_())})
    monkeypatch.setattr(split, "Separator", OnTheHost)
    monkeypatch.setattr(split, "read_steps", noted)
    assert kernel_seconds(CPU, case) is None
    ran = sorted((e for e in recorded if e.get("cat") == "cpu_op"), key=lambda e: e["ts"])
    names = [e["name"] for e in ran if e["name"] in ("aten::neg_", "aten::copy_", "aten::add_")]
    begin = names.index("aten::neg_")
    assert begin > 0
    assert names[begin - 1 :] == ["aten::copy_", *["aten::neg_", "aten::copy_"] * STEPS]
    assert "aten::add_" not in names
