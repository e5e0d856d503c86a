"""What a GPU engine measures of its steps at warm-up, on a fake device, and when that fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from models.checkpoint import build
from service.engine.profiler import (
    DeviceMeasurements,
    KernelTimes,
    NoDeviceMeasurements,
    new_device_measurements,
)
from service.engine.warmup import ConfiguredMode
from service.modes import MODES
from service.records import ModeStatus
from service.step.buffers import Buffers, allocate
from service.step.profiling import INTERVAL_STEPS
from service.step.trace import ProfiledStep
from tests.support.fake_cuda import FakeDevice

BUCKETS = (1, 4)


@pytest.fixture(scope="module")
def buffers() -> dict[int, Buffers]:
    return allocate(build("tiny", max_batch=4), list(BUCKETS), prefill_chunk=64)


class FakeWarmup:
    """Two modes with a step per phase and bucket, which run on `device`; the second has failed."""

    def __init__(self, device: FakeDevice) -> None:
        self.sent: list[ModeStatus] = []
        self.modes = {}
        for name in ("eager", "no_grad"):
            status = ModeStatus(mode=name, removes="", state="ready", effective=name)
            steps: Any = {(p, b): lambda *_: device.call() for p in ("decode", "prefill") for b in BUCKETS}
            self.modes[name] = ConfiguredMode(MODES[name], status, steps)

    def ready(self) -> dict[str, ConfiguredMode]:
        return {"eager": self.modes["eager"]}

    def update(self, configured: ConfiguredMode, **changes: object) -> None:
        configured.status = msgspec.structs.replace(configured.status, **changes)
        self.sent.append(configured.status)


class FakeProfiler:
    """As RequestProfiler."""

    def __init__(self) -> None:
        self.kernel_times = KernelTimes()
        self.used = False

    def warm(self) -> None:
        self.used = True


def learnt(buffers: dict[int, Buffers], profile: Any) -> tuple[DeviceMeasurements, FakeWarmup, FakeProfiler]:
    device = FakeDevice(issue_seconds=10e-6, step_seconds=100e-6)
    warmup, profiler = FakeWarmup(device), FakeProfiler()
    measurements = DeviceMeasurements(warmup, buffers, profiler, device, profile)  # type: ignore[arg-type]
    for _ in measurements.learn():
        continue
    return measurements, warmup, profiler


def steps_of(*seconds: float | None) -> Any:
    """A profiler that finds these kernel seconds, whatever it profiles."""
    return lambda step, arguments, count: [
        ProfiledStep(operators=1, copies=0, kernel_seconds=one) for one in seconds
    ]


def test_every_step_of_every_ready_mode_has_both_measurements(buffers: dict[int, Buffers]) -> None:
    counts: list[int] = []

    def profile(step: Any, arguments: Any, count: int) -> list[ProfiledStep]:
        counts.append(count)
        return [ProfiledStep(operators=1, copies=0, kernel_seconds=90e-6)] * count

    measurements, warmup, profiler = learnt(buffers, profile)
    (status,) = warmup.sent
    expected = {(phase, batch) for phase in ("decode", "prefill") for batch in BUCKETS}
    assert {(one.phase, one.batch) for one in status.device_times} == expected
    assert {(one.phase, one.batch) for one in status.kernel_times} == expected
    assert all(one.seconds == pytest.approx(100e-6) for one in status.device_times)
    assert all((one.low, one.high) == (90e-6, 90e-6) for one in status.kernel_times)
    assert counts == [INTERVAL_STEPS] * 4
    assert measurements.missing is None
    assert profiler.kernel_times.per_step("eager", "decode", 4) == 90e-6


def test_where_the_profiler_sees_no_kernels_their_time_is_absent_and_the_devices_is_there(
    buffers: dict[int, Buffers],
) -> None:
    _, warmup, profiler = learnt(buffers, steps_of(None, None))
    assert warmup.sent[0].kernel_times == []
    assert len(warmup.sent[0].device_times) == 4
    assert profiler.kernel_times.per_step("eager", "decode", 1) is None


def test_a_profiler_that_fails_costs_the_numbers_and_says_why(buffers: dict[int, Buffers]) -> None:
    def failing(*_: object) -> list[ProfiledStep]:
        raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")

    measurements, warmup, _ = learnt(buffers, failing)
    assert measurements.missing == "RuntimeError: CUPTI_ERROR_NOT_INITIALIZED"
    assert warmup.sent == []
    assert warmup.modes["eager"].status.state == "ready"


def test_an_error_that_poisons_the_device_ends_the_engine(buffers: dict[int, Buffers]) -> None:
    def poisoned(*_: object) -> list[ProfiledStep]:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    with pytest.raises(torch.AcceleratorError):
        learnt(buffers, poisoned)


def test_the_profiler_is_attached_with_its_cost_in_every_modes_status(
    buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = FakeDevice(issue_seconds=10e-6, step_seconds=100e-6)
    warmup, profiler = FakeWarmup(device), FakeProfiler()
    scatter = iter([1e-3, 1.01e-3] * 100)
    monkeypatch.setattr("service.engine.profiler.decode_dispatch", lambda *_: next(scatter))
    measurements = DeviceMeasurements(warmup, buffers, profiler, device, steps_of())  # type: ignore[arg-type]
    for _ in measurements.attach():
        assert not any(status.profiler_cost for status in warmup.sent)
    assert profiler.used
    costs = {status.mode: status.profiler_cost for status in warmup.sent}
    assert costs.keys() == {"eager", "no_grad"}
    assert all(cost is not None and cost.ratio == pytest.approx(1.0, rel=0.01) for cost in costs.values())
    assert measurements.profiler_note is None


def test_a_profiler_that_cannot_be_attached_costs_what_it_would_have_told(
    buffers: dict[int, Buffers], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> float:
        raise RuntimeError("CUPTI_ERROR_NOT_INITIALIZED")

    device = FakeDevice(issue_seconds=10e-6, step_seconds=100e-6)
    warmup = FakeWarmup(device)
    monkeypatch.setattr("service.engine.profiler.decode_dispatch", failing)
    measurements = DeviceMeasurements(warmup, buffers, FakeProfiler(), device, steps_of())  # type: ignore[arg-type]
    assert list(measurements.attach()) == []
    assert measurements.profiler_note == (
        "what the profiler costs is not known: RuntimeError: CUPTI_ERROR_NOT_INITIALIZED"
    )
    assert warmup.sent == []


def test_on_a_cpu_there_is_nothing_to_learn_and_nothing_is_claimed(buffers: dict[int, Buffers]) -> None:
    made: Any = new_device_measurements(torch.device("cpu"), None, buffers, None)  # type: ignore[arg-type]
    assert isinstance(made, NoDeviceMeasurements)
    steps: Iterator[None] = made.attach()
    assert [*steps, *made.learn()] == []
    assert made.missing is made.profiler_note is None
