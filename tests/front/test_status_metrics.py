"""What the engine reports of a GPU's steps, as gauges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from service.front.metrics.recorder import Metrics
from service.protocol.device_times import DeviceTime, KernelTime, ProfilerCost
from service.protocol.status import ModeStatus

LABELS = {"mode": "eager", "phase": "decode", "batch": "4"}


def device_time(seconds: float, upper_bound: bool) -> DeviceTime:
    return DeviceTime(
        phase="decode",
        batch=4,
        seconds=seconds,
        low=seconds,
        high=seconds,
        samples=11,
        queued=16,
        upper_bound=upper_bound,
    )


def registry(**changes: object) -> CollectorRegistry:
    """What is exported after a status of eager with `changes`."""
    made = CollectorRegistry()
    metrics = Metrics(made, ["eager"], [1, 4], {"version": "0", "commit": "0"})
    metrics.mode(ModeStatus(mode="eager", removes="", state="ready", effective="eager", **changes))  # type: ignore[arg-type]
    return made


def test_the_devices_own_time_of_a_step_is_a_gauge() -> None:
    found = registry(device_times=[device_time(2e-4, upper_bound=False)])
    assert found.get_sample_value("launchbound_step_device_seconds", LABELS) == 2e-4


def test_an_upper_bound_of_it_is_no_measurement_and_absent() -> None:
    found = registry(device_times=[device_time(2e-4, upper_bound=True)])
    assert found.get_sample_value("launchbound_step_device_seconds", LABELS) is None


def test_kernel_time_is_a_gauge_also_where_its_samples_are_too_few_for_an_interval() -> None:
    kernel = KernelTime(phase="decode", batch=4, seconds=1e-4, low=None, high=None, samples=3)
    found = registry(kernel_times=[kernel])
    assert found.get_sample_value("launchbound_step_kernel_seconds", LABELS) == 1e-4


@pytest.mark.parametrize("known", [True, False])
def test_what_the_profiler_costs_is_a_gauge_where_it_is_known(known: bool) -> None:
    cost = ProfilerCost(ratio=1.1, low=1.0, high=1.2, rounds=8, before_seconds=1e-4, after_seconds=1.1e-4)
    found = registry(profiler_cost=cost if known else None)
    sample = found.get_sample_value("launchbound_profiler_dispatch_ratio", {"mode": "eager"})
    assert sample == (1.1 if known else None)


@pytest.mark.parametrize(("device", "replays"), [("cpu", None), ("cuda", 4.0)])
def test_replays_are_counted_by_what_a_mode_does_on_the_engines_device(
    device: str, replays: float | None
) -> None:
    """`max-autotune` has one name on both; only on CUDA does it replay graphs."""
    made = CollectorRegistry()
    metrics = Metrics(made, ["max-autotune"], [1], {"version": "0", "commit": "0"})
    metrics._device_type = device
    phases = {"prefill": SimpleNamespace(steps=1), "decode": SimpleNamespace(steps=3)}
    steps = SimpleNamespace(**phases, shared=None)
    timing: Any = SimpleNamespace(
        job=SimpleNamespace(mode="max-autotune"),
        engine=steps,
        outcome=SimpleNamespace(effective="max-autotune", batch_size=1, batch_bucket=1),
    )
    metrics._observe_replays(timing)
    sample = made.get_sample_value("launchbound_cudagraph_replays_total", {"mode": "max-autotune"})
    assert sample == replays
