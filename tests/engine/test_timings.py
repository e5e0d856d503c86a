"""Raw readings become seconds per phase: how dispatch is estimated on a CPU, and with which interval."""

from __future__ import annotations

import msgspec
import pytest

from service.engine.job_result import JobResult
from service.engine.timings import StepEstimates, timings
from service.protocol.floors import Floor, StackShare
from service.protocol.timings import PhaseTimings, Timings
from service.step.meters import Readings
from service.step.native.step_samples import StepSamples

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


def of_cuda(result: JobResult, kernel: float | None = None) -> Timings:
    estimates = StepEstimates(True, {}, {"prefill": None, "decode": kernel}, "sampled")
    return timings(result, estimates, done_ns=0)


def on_cuda() -> JobResult:
    """One prefill step and two of decode, in microseconds after an arbitrary instant of 500."""
    us = 1_000
    prefill = Readings(begin=[500 * us], call=[40 * us], feed=[6 * us], wait=[100 * us], span=[150 * us])
    decode = Readings(
        begin=[700 * us, 1_000 * us],
        call=[30 * us, 34 * us],
        feed=[8 * us, 10 * us],
        sampling=[5 * us, 5 * us],
        wait=[200 * us, 202 * us],
        span=[210 * us, 214 * us],
    )
    return JobResult(prefill=prefill, decode=decode, ended_ns=1_310 * us)


def test_periods_follow_each_other_without_a_gap_up_to_the_end_of_the_bookkeeping() -> None:
    found = of_cuda(on_cuda())
    assert found.prefill.period_steps_seconds == pytest.approx([200e-6])
    assert found.decode.period_steps_seconds == pytest.approx([300e-6, 310e-6])
    assert found.prefill.period_seconds == pytest.approx(200e-6)
    assert found.decode.period_seconds == pytest.approx(610e-6)


def test_on_cuda_what_feeds_a_step_and_samples_after_it_is_its_dispatch_and_the_copy_back_is_not() -> None:
    decode = of_cuda(on_cuda()).decode
    assert decode.dispatch_seconds == pytest.approx((30 + 34 + 8 + 10 + 5 + 5) * 1e-6)
    assert decode.dispatch_steps_seconds == pytest.approx([43e-6, 49e-6])
    assert decode.sync_wait_seconds == pytest.approx(402e-6)
    assert decode.wall_seconds == pytest.approx(decode.dispatch_seconds + decode.sync_wait_seconds)
    assert decode.wall_seconds < decode.period_seconds
    assert decode.device_span_seconds == pytest.approx(424e-6)


def test_the_dispatch_of_single_steps_adds_up_to_that_of_the_phase() -> None:
    result = on_cuda()
    result.prefill.sampling.append(4_000)
    for phase in (of_cuda(result).prefill, of_cuda(result).decode):
        assert phase.dispatch_seconds is not None
        assert sum(phase.dispatch_steps_seconds) == pytest.approx(phase.dispatch_seconds)


def test_of_a_prefill_in_chunks_the_last_step_has_the_choice_of_the_first_token() -> None:
    readings = Readings(begin=[0, 50_000], call=[40_000] * 2, feed=[6_000] * 2, sampling=[5_000])
    prefill = of_cuda(JobResult(prefill=readings, ended_ns=100_000)).prefill
    assert prefill.dispatch_steps_seconds == pytest.approx([46e-6, 51e-6])


def test_of_a_decode_that_goes_on_greedily_only_the_first_steps_have_a_choice() -> None:
    readings = Readings(begin=[0, 50_000, 100_000], call=[40_000] * 3, feed=[6_000] * 3, sampling=[5_000])
    decode = of_cuda(JobResult(decode=readings, ended_ns=150_000)).decode
    assert decode.dispatch_steps_seconds == pytest.approx([51e-6, 46e-6, 46e-6])


def test_a_step_that_failed_after_it_was_fed_is_no_step() -> None:
    result = on_cuda()
    result.decode.feed.append(7_000)
    decode = of_cuda(result).decode
    assert decode.steps == len(decode.dispatch_steps_seconds) == len(decode.period_steps_seconds) == 2


def test_kernel_seconds_are_steps_times_what_was_learnt_and_sampled_or_unknown() -> None:
    found = of_cuda(on_cuda(), kernel=150e-6)
    assert found.decode.kernel_seconds == pytest.approx(300e-6)
    assert found.prefill.kernel_seconds is None
    assert of_cuda(on_cuda()).decode.kernel_seconds is None


def test_a_cpu_has_the_sum_of_its_periods_and_no_single_ones() -> None:
    readings = Readings(begin=[0, 1_500_000], call=[1_000_000] * 2)
    estimates = StepEstimates(False, {"decode": TWIN}, {}, "sampled")
    found = timings(JobResult(decode=readings, ended_ns=3_000_000), estimates, done_ns=0)
    assert found.decode.period_seconds == pytest.approx(3e-3)
    assert found.decode.wall_seconds == pytest.approx(2e-3)
    assert found.decode.period_steps_seconds == found.decode.dispatch_steps_seconds == []
    assert found.prefill.period_seconds == 0.0


def test_without_instrumentation_there_is_no_period() -> None:
    result = JobResult(decode=Readings(unmeasured=3), ended_ns=3_000_000)
    assert of_cuda(result).decode.period_seconds is None


def test_without_a_floor_nothing_is_claimed() -> None:
    found, source = decode(None)
    assert found.dispatch_seconds is None
    assert found.kernel_seconds is None
    assert found.dispatch_high_seconds is None
    assert source is None


def test_a_sampled_request_is_split_by_its_own_samples_and_not_by_floors() -> None:
    result = JobResult(
        decode=Readings(call=[STEP_NS] * 10, samples=StepSamples(kernel=60, host=40, unnamed=8))
    )
    found = timings(result, StepEstimates(False, {"prefill": BOTH, "decode": BOTH}, {}, "sampled"), done_ns=0)
    decode = found.decode
    assert decode.dispatch_seconds == pytest.approx(4e-3)
    assert decode.kernel_seconds == pytest.approx(6e-3)
    assert (decode.kernel_samples, decode.host_samples, decode.unnamed_samples) == (60, 40, 8)
    assert decode.dispatch_low_seconds is not None
    assert decode.dispatch_high_seconds is not None
    assert decode.dispatch_low_seconds < 3.2e-3 < 4e-3 < decode.dispatch_high_seconds
    assert not decode.clipped
    assert found.dispatch_source is None or found.dispatch_source == "sampled"


def test_a_request_without_a_twin_has_a_split_where_it_was_sampled() -> None:
    readings = Readings(call=[STEP_NS] * 10, samples=StepSamples(kernel=60, host=40, unnamed=0))
    none = StepEstimates(False, {"prefill": None, "decode": None}, {}, "sampled")
    found = timings(JobResult(prefill=readings, decode=readings), none, done_ns=0)
    assert found.prefill.dispatch_seconds == pytest.approx(4e-3)
    assert (found.dispatch_source, found.kernel_source) == ("sampled", "residual")


def test_a_phase_without_a_sample_is_split_by_its_floor() -> None:
    readings = Readings(call=[STEP_NS] * 10, samples=StepSamples(0, 0, 0))
    floors = StepEstimates(False, {"prefill": TWIN, "decode": TWIN}, {}, "sampled")
    found = timings(JobResult(decode=readings), floors, done_ns=0).decode
    assert found.dispatch_seconds == pytest.approx(2e-3)
