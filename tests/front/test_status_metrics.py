"""What the engine reports of its modes' steps, as series."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from service.front.metrics.recorder import Metrics
from service.records import (
    SIDES,
    DeviceTime,
    KernelTime,
    ModeStatus,
    Phase,
    PhaseTimings,
    ProfilerCost,
    SampleCounts,
    StepGroup,
    StepSplit,
)
from tests.front.test_auto_mode import ENGINE

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


def status(**changes: object) -> ModeStatus:
    return ModeStatus(mode="eager", removes="", state="ready", effective="eager", **changes)  # type: ignore[arg-type]


def recorder(device: str = "cpu") -> tuple[Metrics, CollectorRegistry]:
    """With an engine on `device` that has told of itself."""
    made = CollectorRegistry()
    metrics = Metrics(made, ["eager"], [1, 4], {"version": "0", "commit": "0"})
    metrics.engine(msgspec.structs.replace(ENGINE, device=device))
    return metrics, made


def registry(**changes: object) -> CollectorRegistry:
    """What is exported after a status of eager with `changes`."""
    metrics, made = recorder()
    metrics.mode(status(**changes))
    return made


def split(samples: int, phase: Phase = "decode", share: float = 0.6) -> StepSplit:
    """Of batch 4; so many samples in kernels as in the host since the engine's start, and one of no rule."""
    counts = SampleCounts(kernel=samples, host=samples, unclassified=1)
    return StepSplit(
        phase=phase,
        batch=4,
        dispatch_share=share,
        low=0.5,
        high=0.7,
        step_seconds=1e-3,
        newest=counts,
        all=counts,
    )


def counted(made: CollectorRegistry, phase: str = "decode", batch: str = "4") -> list[float | None]:
    place = {"mode": "eager", "phase": phase, "batch": batch}
    return [made.get_sample_value("launchbound_samples_total", {**place, "side": side}) for side in SIDES]


@pytest.mark.parametrize(("device", "there"), [("cpu", [0.0] * 4), ("cuda", [None] * 4)])
def test_samples_are_at_zero_for_every_step_from_the_start_and_absent_on_cuda(
    device: str, there: list[float | None]
) -> None:
    _, made = recorder(device)
    places = [(phase, batch) for phase in ("prefill", "decode") for batch in ("1", "4")]
    assert [counted(made, *place) for place in places] == [there] * 4


def test_samples_grow_by_what_an_engine_has_more_than_it_last_said() -> None:
    metrics, made = recorder()
    for samples in (5, 5, 8):
        metrics.mode(status(splits=[split(samples)]))
        assert counted(made) == [samples, samples, 0, 1]
    metrics.mode(status())
    metrics.mode(status(splits=[split(9), split(2, "prefill")]))
    assert counted(made) == [9, 9, 0, 1]
    assert counted(made, "prefill") == [2, 2, 0, 1]


def test_samples_of_the_next_engine_are_added_to_those_of_the_last() -> None:
    metrics, made = recorder()
    metrics.mode(status(splits=[split(5)]))
    metrics.engine_lost()
    metrics.mode(status(splits=[split(3)]))
    assert counted(made) == [8, 8, 0, 2]


def test_the_device_bound_index_is_the_kernel_share_of_decode_by_the_newest_samples() -> None:
    metrics, made = recorder()
    for share in (0.6, 0.3):
        metrics.mode(status(splits=[split(5, share=share), split(5, "prefill", share=0.9)]))
        index = made.get_sample_value("launchbound_device_bound_index", {"mode": "eager", "batch": "4"})
        assert index == pytest.approx(1 - share)


@pytest.mark.parametrize(("device", "index"), [("cpu", None), ("cuda", 0.25)])
def test_the_device_bound_index_is_that_of_the_newest_request_on_cuda_alone(
    device: str, index: float | None
) -> None:
    metrics, made = recorder(device)
    for kernel in (9.0, 1.0):
        timings = PhaseTimings(
            steps=1,
            wall_seconds=4.0,
            dispatch_seconds=3.0,
            device_span_seconds=None,
            kernel_seconds=kernel,
            sync_wait_seconds=None,
        )
        metrics._observe_phase(StepGroup(phase="decode", batch=4, rows=4, timings=timings), "eager")
    labels = {"mode": "eager", "batch": "4"}
    assert made.get_sample_value("launchbound_device_bound_index", labels) == index


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
