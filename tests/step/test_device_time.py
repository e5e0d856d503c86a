"""The device's own time of a step by queued calls: true where the queue lay ready, else an upper bound."""

from __future__ import annotations

import pytest
import torch

from service.records import DeviceTime
from service.step import device_time as module
from service.step.device_time import MOST_HOLD_SECONDS, VISITS, CudaQueue, device_time
from tests.support.fake_cuda import FakeDevice


def measured(device: FakeDevice) -> DeviceTime:
    return device_time(device, device.call, "decode", 4, device.clock)


def test_a_replay_is_queued_far_ahead_and_takes_what_the_device_takes() -> None:
    found = measured(FakeDevice(issue_seconds=10e-6, step_seconds=100e-6))
    assert found.seconds == pytest.approx(100e-6)
    assert (found.low, found.high) == pytest.approx((100e-6, 100e-6))
    assert (found.phase, found.batch, found.queued, found.samples) == ("decode", 4, 16, VISITS)
    assert not found.upper_bound


def test_as_many_calls_are_queued_as_the_driver_takes_ahead() -> None:
    found = measured(FakeDevice(issue_seconds=500e-6, step_seconds=100e-6, launches=200))
    assert found.queued == 4
    assert found.seconds == pytest.approx(100e-6)
    assert not found.upper_bound


def test_where_not_even_one_call_can_be_queued_ahead_the_result_is_an_upper_bound_and_says_so() -> None:
    found = measured(FakeDevice(issue_seconds=2 * MOST_HOLD_SECONDS, step_seconds=0.1))
    assert found.upper_bound
    assert found.seconds > 0.1


def test_visits_in_which_the_device_caught_up_are_left_out_as_long_as_enough_remain() -> None:
    hiccups = frozenset({4 + 16 + 16 * number + 3 for number in (2, 5)})
    found = measured(FakeDevice(issue_seconds=10e-6, step_seconds=100e-6, hiccups=hiccups))
    assert (found.samples, found.upper_bound) == (VISITS - 2, False)
    assert found.high == pytest.approx(100e-6)
    every = frozenset({4 + 16 + 16 * number + 3 for number in range(6)})
    found = measured(FakeDevice(issue_seconds=10e-6, step_seconds=100e-6, hiccups=every))
    assert (found.samples, found.upper_bound) == (VISITS, True)
    assert found.seconds > 100e-6


def test_the_spinning_kernel_is_given_cycles_at_the_rate_that_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FakeDevice(0.0, 0.0)
    spun: list[int] = []

    def spin(cycles: int) -> None:
        spun.append(cycles)
        device.hold(cycles / 1.5e9)

    monkeypatch.setattr(torch.cuda, "_sleep", spin)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: device.event())
    queue = CudaQueue()
    queue.hold(0.01)
    queue.hold(0.02)
    assert spun[-2:] == pytest.approx([15e6, 30e6])
    assert len(spun) == 4
    assert module.HOLD_MARGIN > 1
