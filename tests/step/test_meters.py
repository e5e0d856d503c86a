"""Meters: what they record of each call, and that the periods of all steps are all the time there was."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from service.step import meters
from tests.step.made import arguments, step
from tests.support.fake_cuda import FakeDevice


def test_on_cuda_the_span_begins_before_the_call_so_it_holds_the_wait_for_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, zeros = FakeDevice(issue_seconds=300e-9, step_seconds=900e-9, host_ns=1_000), torch.zeros
    monkeypatch.setattr(meters, "perf_counter_ns", device.clock)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing=False: device.event())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch, "zeros", lambda *size, pin_memory=False, **rest: zeros(*size, **rest))
    readings, meter = meters.Readings(), meters.CudaMeter(4)

    def step(*_: object) -> tuple[Tensor, Tensor]:
        device.call()
        return torch.empty(1), torch.tensor([7])

    for given in (arguments(1, 64), arguments(16, 128)):
        _, tokens = meter.run(step, given, readings)
        assert meter.fetch(meter.copy(tokens), readings) == [7]
    assert readings.call == [300, 300]
    assert readings.wait == [900, 900]
    assert readings.span == [1_200, 1_200]
    assert readings.shapes == [(1, 64), (16, 128)]
    assert readings.periods(device.clock()) == [1_200, 1_200]


def test_the_profiler_is_ended_once_before_the_first_step_that_is_too_many_or_at_the_end() -> None:
    ends: list[int] = []
    readings = meters.Readings()
    meter = meters.ProfilingMeter(meters.HostMeter(), lambda: ends.append(readings.steps), most=2)
    for _ in range(4):
        meter.run(step, arguments(1, 64), readings)
    meter.end()
    assert (ends, readings.steps) == ([2], 4)
    few = meters.ProfilingMeter(meters.HostMeter(), lambda: ends.append(0), most=2)
    few.run(step, arguments(1, 64), readings)
    few.end()
    assert ends == [2, 0]
