"""Raw readings become seconds per phase: how dispatch is estimated on a CPU, and with which interval."""

from __future__ import annotations

import msgspec
import pytest

from service.engine.job_result import JobResult
from service.engine.timings import StepEstimates, timings
from service.protocol.messages import PhaseTimings
from service.protocol.status import Floor, StackShare
from service.step.meters import Readings

STEP_NS = 1_000_000
TWIN = Floor(phase="decode", batch=1, seconds=2e-4, low=1.9e-4, high=2.1e-4, samples=21, source="calibrated")
SHARE = StackShare(
    kernel_share=0.7,
    low=0.65,
    high=0.75,
    samples=600,
    step_seconds=1e-3,
    dispatch_seconds=3e-4,
    dispatch_low_seconds=2.5e-4,
    dispatch_high_seconds=3.5e-4,
)
BOTH = msgspec.structs.replace(TWIN, stacks=SHARE)


def decode(floor: Floor | None, step_ns: int = STEP_NS, steps: int = 10) -> tuple[PhaseTimings, str | None]:
    result = JobResult(decode=Readings(call=[step_ns] * steps))
    estimates = StepEstimates(False, {"prefill": floor, "decode": floor}, {}, "sampled")
    found = timings(result, estimates, done_ns=0)
    return found.decode, found.dispatch_source


def test_without_stacks_dispatch_is_the_twins_and_so_is_its_interval() -> None:
    found, source = decode(TWIN)
    assert found.dispatch_seconds == pytest.approx(2e-3)
    assert (found.dispatch_low_seconds, found.dispatch_high_seconds) == pytest.approx((1.9e-3, 2.1e-3))
    assert found.kernel_seconds == pytest.approx(8e-3)
    assert source == "calibrated"


def test_with_stacks_dispatch_is_theirs_and_the_interval_spans_both() -> None:
    found, _ = decode(BOTH)
    assert found.dispatch_seconds == pytest.approx(3e-3)
    assert found.dispatch_low_seconds == pytest.approx(1.9e-3)
    assert found.dispatch_high_seconds == pytest.approx(3.5e-3)


def test_where_steps_take_longer_than_when_stacks_were_sampled_the_interval_reaches_to_their_share() -> None:
    found, _ = decode(BOTH, step_ns=2 * STEP_NS)
    assert found.dispatch_seconds == pytest.approx(3e-3)
    assert found.dispatch_high_seconds == pytest.approx(7e-3)


def test_an_estimate_longer_than_the_steps_is_cut_to_them_and_said_to_be() -> None:
    found, _ = decode(BOTH, step_ns=STEP_NS // 10)
    assert found.clipped
    assert found.dispatch_seconds == found.wall_seconds == pytest.approx(1e-3)
    assert found.kernel_seconds == 0.0
    assert not decode(BOTH)[0].clipped


def test_without_a_floor_nothing_is_claimed() -> None:
    found, source = decode(None)
    assert found.dispatch_seconds is None
    assert found.kernel_seconds is None
    assert found.dispatch_high_seconds is None
    assert source is None
