"""What merged requests say they took: the parts of each make its time, and every step is counted once."""

from __future__ import annotations

import pytest

from service.engine.inbox import local_job
from service.engine.outcome import StepEstimates
from service.records import Outcome, SampleCounts, SharedWork, Timings
from service.step.meters import NullMeter
from tests.engine.batching import merging
from tests.engine.batching.merging import Served, TinyEngine

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


def test_parts_fit_into_the_time_between_taken_and_done(served: Served) -> None:
    for outcome in served.outcomes.values():
        timings = timings_of(outcome)
        walls = (timings.prefill.wall_seconds or 0.0) + (timings.decode.wall_seconds or 0.0)
        parts = walls + shared(outcome).stall_seconds + timings.tokenise_seconds
        assert 0 < parts <= (timings.done_ns - timings.taken_ns) / 1e9


def test_the_queue_ends_where_the_prefill_begins(served: Served) -> None:
    order = sorted(served.outcomes.values(), key=lambda outcome: timings_of(outcome).taken_ns)
    assert [outcome.id for outcome in order] == ["0", "1", "2", "long"]
    assert all(timings_of(outcome).queue_seconds >= 0 for outcome in order)
    assert timings_of(served.outcomes["1"]).taken_ns == pytest.approx(
        timings_of(served.outcomes["2"]).taken_ns, abs=1e6
    )


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
    counted = {
        phase: sum(group.timings.steps for group in groups if group.phase == phase)
        for phase in ("prefill", "decode")
    }
    decodes = sum(1 for _, length in served.shapes if length == 1)
    assert counted == {"prefill": len(served.shapes) - decodes, "decode": decodes}
    by_bucket = {
        bucket: sum(g.timings.steps for g in groups if g.phase == "decode" and g.batch == bucket)
        for bucket in (1, 2, 4)
    }
    assert by_bucket == {
        bucket: sum(1 for shape in served.shapes if shape == (bucket, 1)) for bucket in (1, 2, 4)
    }
    assert all(group.rows <= group.batch * group.timings.steps for group in groups)
    assert shared(served.outcomes["1"]).counted == []


def test_a_requests_steps_are_all_those_that_it_ran_in(served: Served) -> None:
    timings = timings_of(served.outcomes["0"])
    assert (timings.prefill.steps, timings.decode.steps) == (1, 11)
    period = timings.decode.period_seconds
    assert period is not None
    assert period > (timings.decode.wall_seconds or 0.0)
    between = (timings.done_ns - (timings.first_token_ns or 0)) / 1e9
    assert period + shared(served.outcomes["0"]).stall_seconds < between


def test_without_instrumentation_steps_are_counted_and_nothing_is_claimed_of_them() -> None:
    jobs = [local_job(str(n), "eager", ["x"], 4, ignore_eos=True) for n in range(2)]
    served = TinyEngine().merged({0: jobs}, "window", inner=NullMeter())
    counted = 0
    for outcome in served.outcomes.values():
        decode = timings_of(outcome).decode
        assert decode.steps == 3
        assert decode.wall_seconds is decode.dispatch_seconds is decode.period_seconds is None
        assert timings_of(outcome).dispatch_source is None
        counted += sum(group.timings.steps for group in shared(outcome).counted)
    assert counted == len(served.shapes) == 4


@pytest.mark.parametrize("known", [(1, 2, 4), (1, 2)])
def test_a_request_that_ran_in_several_buckets_has_a_split_where_the_traffic_of_all_has_samples(
    monkeypatch: pytest.MonkeyPatch, known: tuple[int, ...]
) -> None:
    samples = {
        bucket: SampleCounts(kernel=2 * bucket, host=bucket, system=5, unclassified=1) for bucket in known
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
    assert counts == (14, 7, 15, 3)
    assert decode.samples_of == "traffic"
    assert decode.wall_seconds is not None
    assert decode.dispatch_seconds == pytest.approx(decode.wall_seconds / 3)
