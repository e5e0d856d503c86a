"""Advice: the answer that the measured requests imply, or what to run first."""

from __future__ import annotations

from random import Random

import pytest

from service.front.advice import SAMPLES_NEEDED, StepStatistics
from service.front.errors import NotMeasured
from service.front.request_timing import add_up
from service.protocol.messages import Job, Outcome, Output, PhaseTimings, StepProfile, Timings
from service.statistics.boundedness import bound, crossover, device_bound_index
from tests.support.serving import Front, until

MODES = ("eager", "no_grad", "compiled")


def feed(
    statistics: StepStatistics,
    mode: str,
    bucket: int,
    step_seconds: float,
    share: float,
    count: int = SAMPLES_NEEDED,
    profile: list[StepProfile] | None = None,
) -> None:
    """`count` requests of about `step_seconds` per decode step, of which dispatch takes `share`."""
    noise = Random(f"{mode}{bucket}")
    for _ in range(count):
        wall = step_seconds * 10 * noise.uniform(0.99, 1.01)
        decode = PhaseTimings(
            steps=10,
            wall_seconds=wall,
            dispatch_seconds=wall * share,
            device_span_seconds=None,
            kernel_seconds=wall * (1 - share),
            sync_wait_seconds=None,
        )
        timings = Timings(
            queue_seconds=0,
            prefill=decode,
            decode=decode,
            tokenise_seconds=0,
            involuntary_switches=0,
            dispatch_source="calibrated",
            kernel_source="residual",
            taken_ns=0,
            first_token_ns=1,
            done_ns=2,
        )
        job = Job(id="a", mode=mode, prompts=["x"], max_new_tokens=11, sent_ns=0, deadline_ns=1)
        outcome = Outcome(
            id="a",
            mode=mode,
            effective=mode,
            reason=None,
            kind="ok",
            batch_size=bucket,
            batch_bucket=bucket,
            outputs=[Output(text="", token_ids=[1], finish_reason="length")],
            timings=timings,
            profile=profile,
        )
        statistics.observe(add_up(job, outcome, 0, 3, 4))


def test_the_fastest_mode_is_advised_with_its_speedup_and_the_reason() -> None:
    statistics = StepStatistics()
    for mode, seconds in zip(MODES, (2e-3, 1.5e-3, 1e-3), strict=True):
        feed(statistics, mode, 1, seconds, share=0.6)
    advice = statistics.advise(1, [1, 4], MODES)
    assert advice.mode == "compiled"
    assert advice.speedup.low < 2.0 < advice.speedup.high
    assert advice.samples == SAMPLES_NEEDED
    assert "60%" in advice.reason


def test_of_modes_without_a_detectable_difference_the_simplest_is_advised() -> None:
    statistics = StepStatistics()
    for mode, seconds in zip(MODES, (2e-3, 1.0005e-3, 1e-3), strict=True):
        feed(statistics, mode, 1, seconds, share=0.6)
    assert statistics.advise(1, [1], MODES).mode == "no_grad"


def test_a_batch_is_advised_on_by_its_bucket_and_the_crossover_lies_where_eager_turns() -> None:
    statistics = StepStatistics()
    for mode in MODES:
        feed(statistics, mode, 1, 1e-3, share=0.75)
        feed(statistics, mode, 4, 4e-3, share=0.25)
    advice = statistics.advise(3, [1, 4], MODES)
    assert advice.bucket == 4
    assert advice.bound == "kernel-bound"
    assert advice.crossover == pytest.approx(2.0, rel=0.02)


def test_too_few_samples_are_an_error_that_names_what_to_run() -> None:
    statistics = StepStatistics()
    feed(statistics, "eager", 1, 1e-3, share=0.5)
    feed(statistics, "no_grad", 1, 1e-3, share=0.5, count=SAMPLES_NEEDED - 1)
    with pytest.raises(NotMeasured, match=r"no_grad, compiled.*compare"):
        statistics.advise(1, [1], MODES)


def test_profiled_requests_do_not_count() -> None:
    statistics = StepStatistics()
    profile = [StepProfile(phase="decode", steps=10, operators=1, copies=0)]
    feed(statistics, "eager", 1, 1e-3, share=0.5, profile=profile)
    with pytest.raises(NotMeasured):
        statistics.advise(1, [1], ["eager"])


def test_the_index_is_named_by_its_range() -> None:
    bounds = [bound(index) for index in (0.0, 0.19, 0.2, 0.49, 0.5, 1.0, None)]
    assert bounds == ["launch-bound"] * 2 + ["balanced"] * 2 + ["kernel-bound"] * 2 + [None]
    assert device_bound_index(3.0, 1.0) == 0.75
    assert device_bound_index(None, 1.0) is None


def test_a_crossover_that_was_not_seen_lies_outside() -> None:
    assert crossover({1: 0.6, 4: 0.8}).where == "below"
    assert crossover({1: 0.1, 4: 0.4}).where == "above"
    assert crossover({}).where == "unknown"


def test_the_route_answers_409_first_and_then_from_what_it_served(own_front: Front) -> None:
    first = own_front.http.get("/v1/advice", params={"batch_size": 1})
    assert first.status_code == 409
    assert first.json()["error"]["type"] == "not_measured"
    compared = own_front.http.post("/v1/compare", json={"prompts": ["x"], "max_new_tokens": 4, "repeats": 8})
    assert compared.status_code == 200
    until(lambda: own_front.http.get("/v1/advice").status_code == 200, "advice")
    answer = own_front.http.get("/v1/advice", params={"batch_size": 1}).json()
    assert answer["batch_size"] == 1
    assert answer["bound"] in {"launch", "balanced", "kernel"}
    assert answer["speedup"]["vs"] == "eager"
    assert answer["samples"] >= 8


def test_a_batch_outside_the_buckets_is_refused_with_the_limit(own_front: Front) -> None:
    for size in (0, 10_000):
        refused = own_front.http.get("/v1/advice", params={"batch_size": size})
        assert refused.status_code == 422
        assert refused.json()["error"]["param"] == "batch_size"
