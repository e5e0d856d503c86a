"""Raw readings become seconds per phase: whose samples split them, and what merged requests say."""

from __future__ import annotations

from collections import Counter

import pytest

from service.engine.inbox import local_job
from service.engine.job import JobResult
from service.engine.outcome import BatchStep, StepEstimates, shared_timings, timings
from service.records import Outcome, PhaseTimings, SampleCounts, SharedWork, Timings
from service.statistics.boundedness import dispatch_share
from service.step.meters import Readings
from service.step.trace import StepShape
from tests.engine import merging
from tests.engine.merging import Served, TinyEngine

STEP_NS = 1_000_000
FEW = SampleCounts(kernel=40, host=30)
NEWEST = SampleCounts(kernel=1400, host=600, system=9, unclassified=20)
OWN = SampleCounts(kernel=60, host=40, system=5, unclassified=8)


def decode(own: SampleCounts | None, newest: SampleCounts | None) -> PhaseTimings:
    """Ten steps of a millisecond each, behind which tokens are chosen for a millisecond in all."""
    readings = Readings(call=[STEP_NS] * 10, sampling=[STEP_NS // 10] * 10, samples=own)
    return of_cpu(JobResult(decode=readings), newest).decode


def of_cpu(result: JobResult, newest: SampleCounts | None) -> Timings:
    estimates = StepEstimates(False, {"prefill": newest, "decode": newest}, {}, "sampled")
    return timings(result, estimates, done_ns=0)


def test_dispatch_is_the_hosts_share_of_the_steps_and_the_choice_of_tokens() -> None:
    found = decode(None, NEWEST)
    share = dispatch_share(NEWEST)
    assert share is not None
    assert found.dispatch_seconds == pytest.approx(0.01 * share.value + 0.001)
    assert found.dispatch_low_seconds == pytest.approx(0.01 * share.low + 0.001)
    assert found.dispatch_high_seconds == pytest.approx(0.01 * share.high + 0.001)
    assert found.kernel_seconds == pytest.approx(found.wall_seconds - found.dispatch_seconds)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("own", "rests_on", "samples_of"),
    [
        (OWN, OWN, "request"),
        (FEW, NEWEST, "traffic"),
        (SampleCounts(kernel=50, host=49, system=500, unclassified=500), NEWEST, "traffic"),
        (None, NEWEST, "traffic"),
    ],
)
def test_a_phase_rests_on_its_own_samples_where_they_are_enough_and_else_on_the_newest(
    own: SampleCounts | None, rests_on: SampleCounts, samples_of: str
) -> None:
    found = decode(own, NEWEST)
    counts = found.kernel_samples, found.host_samples, found.system_samples, found.unclassified_samples
    assert counts == (rests_on.kernel, rests_on.host, rests_on.system, rests_on.unclassified)
    assert found.samples_of == samples_of


@pytest.mark.parametrize("own", [None, FEW])
def test_without_enough_samples_nothing_is_claimed(own: SampleCounts | None) -> None:
    found = decode(own, None)
    assert found.dispatch_seconds is found.kernel_seconds is found.dispatch_high_seconds is None
    assert found.kernel_samples is found.unclassified_samples is found.samples_of is None
    whole = of_cpu(JobResult(prefill=Readings(call=[STEP_NS], samples=own)), None)
    assert whole.dispatch_source is whole.kernel_source is None


def test_samples_of_no_class_are_counted_and_their_step_is_not_split() -> None:
    found = decode(SampleCounts(kernel=80, host=40, unclassified=900), NEWEST)
    assert (found.kernel_samples, found.unclassified_samples, found.samples_of) == (80, 900, "request")
    assert found.dispatch_seconds is found.kernel_seconds is found.dispatch_high_seconds is None


SHORT, LONG = StepShape(1, 64), StepShape(1, 128)


def by_shape(**decode: float) -> StepEstimates:
    shapes = {"short": SHORT, "long": LONG}
    known = {shapes[name]: seconds for name, seconds in decode.items()}
    return StepEstimates(True, {}, {"decode": known}, "sampled")


def of_cuda(result: JobResult, **decode: float) -> Timings:
    return timings(result, by_shape(**decode), done_ns=0)


def on_cuda() -> JobResult:
    """One prefill step and two of decode, in microseconds after an arbitrary instant of 500."""
    us = 1_000
    prefill = Readings(begin=[500 * us], call=[40 * us], feed=[6 * us], wait=[100 * us], span=[150 * us])
    prefill.shapes = [StepShape(16, 64)]
    decode = Readings(
        begin=[700 * us, 1_000 * us],
        call=[30 * us, 34 * us],
        feed=[8 * us, 10 * us],
        sampling=[5 * us, 5 * us],
        wait=[200 * us, 202 * us],
        span=[210 * us, 214 * us],
        shapes=[SHORT, LONG],
    )
    return JobResult(prefill=prefill, decode=decode, ended_ns=1_310 * us)


def test_periods_follow_each_other_without_a_gap_up_to_the_end_of_the_bookkeeping() -> None:
    found = of_cuda(on_cuda())
    assert found.prefill.period_steps_seconds == pytest.approx([200e-6])
    assert found.decode.period_steps_seconds == pytest.approx([300e-6, 310e-6])
    sums = found.prefill.period_seconds, found.decode.period_seconds
    assert sums == pytest.approx((200e-6, 610e-6))
    readings = Readings(begin=[0, 1_500_000], call=[1_000_000] * 2)
    on_cpu = of_cpu(JobResult(decode=readings, ended_ns=3_000_000), NEWEST)
    assert (on_cpu.prefill.period_seconds, on_cpu.decode.period_seconds) == pytest.approx((0.0, 3e-3))
    assert on_cpu.decode.wall_seconds == pytest.approx(2e-3)
    assert on_cpu.decode.period_steps_seconds == on_cpu.decode.dispatch_steps_seconds == []


def test_on_cuda_what_feeds_a_step_and_samples_after_it_is_its_dispatch_and_the_copy_back_is_not() -> None:
    decode = of_cuda(on_cuda()).decode
    assert decode.dispatch_seconds == pytest.approx((30 + 34 + 8 + 10 + 5 + 5) * 1e-6)
    assert decode.dispatch_steps_seconds == pytest.approx([43e-6, 49e-6])
    assert decode.sync_wait_seconds == pytest.approx(402e-6)
    assert decode.wall_seconds == pytest.approx(decode.dispatch_seconds + decode.sync_wait_seconds)
    assert decode.wall_seconds < decode.period_seconds
    assert decode.device_span_seconds == pytest.approx(424e-6)


def test_a_choice_of_tokens_is_of_the_last_chunk_and_a_step_that_failed_after_it_was_fed_is_none() -> None:
    readings = Readings(begin=[0, 50_000], call=[40_000] * 2, feed=[6_000] * 2, sampling=[5_000])
    prefill = of_cuda(JobResult(prefill=readings, ended_ns=100_000)).prefill
    assert prefill.dispatch_steps_seconds == pytest.approx([46e-6, 51e-6])
    result = on_cuda()
    result.decode.feed.append(7_000)
    decode = of_cuda(result).decode
    assert decode.steps == len(decode.dispatch_steps_seconds) == len(decode.period_steps_seconds) == 2


def test_kernel_seconds_are_those_of_each_steps_own_size_or_unknown() -> None:
    found = of_cuda(on_cuda(), short=150e-6, long=190e-6)
    assert found.decode.kernel_seconds == pytest.approx(340e-6)
    assert found.prefill.kernel_seconds is None
    assert of_cuda(on_cuda(), short=150e-6).decode.kernel_seconds is None


@pytest.mark.parametrize(("known", "expected"), [({"long": 3e-4}, 1e-4 + 3 * 3e-4), ({}, None)])
def test_merged_steps_have_the_kernel_seconds_of_their_bucket_and_size(
    known: dict[str, float], expected: float | None
) -> None:
    costs = {1: by_shape(short=1e-4), 2: by_shape(short=2e-4, **known)}
    steps = [
        BatchStep("decode", bucket, bucket, Readings(begin=[n], call=[1], shapes=[shape]))
        for n, (bucket, shape) in enumerate([(1, SHORT), (2, LONG), (2, LONG), (2, LONG)])
    ]
    found = shared_timings(JobResult(bucket=2), 1, steps, costs.__getitem__, 0, 0)
    assert found.decode.kernel_seconds == (expected and pytest.approx(expected))
    assert found.decode.steps == 4


LONG = "import os\n" * 40


@pytest.fixture(scope="module")
def served() -> Served:
    """Three that run together for a while, of which the second is cancelled, and one of several chunks."""
    jobs = [local_job(str(n), "inference_mode", ["x"], 12, ignore_eos=True) for n in range(3)]
    long = local_job("long", "inference_mode", [LONG, "x"], 4, ignore_eos=True)
    arrivals = {0: jobs[:1], 2: jobs[1:], 7: [long]}
    return TinyEngine().merged(arrivals, cancellations={9: {"1"}})


def timings_of(outcome: Outcome) -> Timings:
    assert outcome.timings is not None
    return outcome.timings


def shared(outcome: Outcome) -> SharedWork:
    found = timings_of(outcome).shared
    assert found is not None
    return found


def test_who_runs_stalls_while_others_are_prefilled_and_those_do_not(served: Served) -> None:
    stalled = {name: shared(outcome).stall_seconds for name, outcome in served.outcomes.items()}
    assert stalled["0"] > stalled["2"] > 0
    assert stalled["long"] == 0
    prefill = timings_of(served.outcomes["long"]).prefill.wall_seconds
    assert prefill is not None
    assert stalled["2"] > prefill


def test_the_effective_batch_is_the_mean_of_the_rows_of_all_steps(served: Served) -> None:
    for name, outcome in served.outcomes.items():
        own = len(outcome.outputs)
        assert own <= shared(outcome).rows <= 4, name
        assert not shared(outcome).alone
    alone = TinyEngine().merged({0: [local_job("a", "eager", ["x", "x"], 4, ignore_eos=True)]})
    assert shared(alone.outcomes["a"]).rows == 2.0
    assert shared(alone.outcomes["a"]).alone


def test_every_step_is_counted_by_exactly_one_request_that_ended_well(served: Served) -> None:
    groups = [group for outcome in served.outcomes.values() for group in shared(outcome).counted]
    counted = Counter[tuple[str, int]]()
    for group in groups:
        counted[group.phase, group.batch] += group.timings.steps
    assert counted == Counter(("decode" if n == 1 else "prefill", rows) for rows, n in served.shapes)
    assert all(group.rows <= group.batch * group.timings.steps for group in groups)
    assert shared(served.outcomes["1"]).counted == []


@pytest.mark.parametrize("known", [(1, 2, 4), (1, 2)])
def test_a_request_that_ran_in_several_buckets_has_a_split_where_the_traffic_of_all_has_samples(
    monkeypatch: pytest.MonkeyPatch, known: tuple[int, ...]
) -> None:
    samples = {
        bucket: SampleCounts(kernel=4 * bucket, host=2 * bucket, system=5, unclassified=1) for bucket in known
    }

    def estimates(_: str, bucket: int) -> StepEstimates:
        return StepEstimates(False, dict.fromkeys(("prefill", "decode"), samples.get(bucket)), {}, "sampled")

    monkeypatch.setattr(merging, "estimates", estimates)
    jobs = [local_job(str(n), "eager", ["x"], 12 - n, ignore_eos=True) for n in range(3)]
    served = TinyEngine().merged({0: jobs[:1], 2: jobs[1:2], 5: jobs[2:]})
    decode = timings_of(served.outcomes["0"]).decode
    counts = decode.kernel_samples, decode.host_samples, decode.system_samples, decode.unclassified_samples
    if known == (1, 2):
        assert counts == (None, None, None, None)
        assert decode.samples_of is decode.dispatch_seconds is None
        return
    assert counts == (28, 14, 15, 3)
    assert decode.samples_of == "traffic"
    assert decode.wall_seconds is not None
    assert decode.dispatch_seconds == pytest.approx(decode.wall_seconds / 3)
