"""Advice: the answer that the measured requests imply, or what to run first."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec
import pytest

from service.front.advice import (
    AGE_SECONDS,
    WORKS_KEPT,
    ServedRequests,
)
from service.front.errors import NotMeasured
from service.front.request_timing import add_up
from service.records import ModeStatus, SampleCounts, SharedWork, StepProfile
from service.statistics.choice import MINIMUM_ROUNDS
from tests.support.outcomes import JOB, outcome, phase, split
from tests.support.serving import Front, refused, until

MODES = ("eager", "no_grad", "compiled")
FAST = {"eager": 2e-3, "no_grad": 1.5e-3, "compiled": 1e-3}


class Traffic:
    """Requests that end one second after another, of about the given seconds per step."""

    def __init__(self) -> None:
        self.served = ServedRequests()
        self.now_seconds = 0.0
        self.random = Random(5)

    def request(
        self,
        mode: str,
        bucket: int,
        step_seconds: float,
        share: float = 0.6,
        *,
        steps: int = 10,
        chunks: int = 1,
        prefill_seconds: float | None = None,
        temperature: float = 0.0,
        queue_seconds: float = 0.0,
        scatter: float = 0.01,
        profile: list[StepProfile] | None = None,
        shared: SharedWork | None = None,
        sampled: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """One request, of whose decode dispatch takes `share`; its prefill is all kernel, one step's time."""
        self.now_seconds += 1.0
        prefill_seconds = step_seconds * chunks if prefill_seconds is None else prefill_seconds
        wall = step_seconds * steps * self.random.uniform(1 - scatter, 1 + scatter)
        done = outcome(
            phase(0.0, prefill_seconds, steps=chunks, wall_seconds=prefill_seconds),
            phase(wall * share, wall * (1 - share), steps=steps, wall_seconds=wall),
            mode=mode,
            batch_size=bucket,
            batch_bucket=bucket,
            queue_seconds=queue_seconds,
            padded_prompt_tokens=64 * chunks,
            done_ns=round(self.now_seconds * 1e9),
            shared=shared,
        )
        done = msgspec.structs.replace(done, profile=profile, sampled=sampled)
        asked = {"mode": mode, "max_new_tokens": steps + 1, "temperature": temperature, **(options or {})}
        ended_ns = round((queue_seconds + wall + prefill_seconds) * 1e9)
        self.served.observe(add_up(msgspec.structs.replace(JOB, **asked), done, 0, 3, ended_ns))

    def in_turn(
        self, step_seconds: Mapping[str, float], bucket: int = 1, rounds: int = MINIMUM_ROUNDS, **how: Any
    ) -> None:
        """`rounds` in which every mode runs once, in a random order."""
        for _ in range(rounds):
            for mode in self.random.sample(list(step_seconds), len(step_seconds)):
                self.request(mode, bucket, step_seconds[mode], **how)

    def samples(self, mode: str, share: float, spread: float = 0.1, bucket: int = 1) -> None:
        """By the newest, dispatch takes `share` of a decode step of `mode`, or a `spread` more or less."""
        newest = SampleCounts(kernel=100 - round(100 * share), host=round(100 * share))
        splits = [split(share, newest, bucket, spread=spread), split(0.01, newest, bucket, "prefill")]
        status = ModeStatus(mode=mode, removes="", state="ready", effective=mode, splits=splits)
        self.served.mode(status)


def test_the_fastest_mode_is_advised_with_its_speedup_and_the_reason() -> None:
    traffic = Traffic()
    traffic.in_turn(FAST)
    advice = traffic.served.advise(1, [1, 4], MODES)
    assert advice.mode == "compiled"
    assert advice.speedup.value == pytest.approx(2.0, rel=0.02)
    assert advice.speedup.low < advice.speedup.value < advice.speedup.high
    assert advice.speedup.samples == MINIMUM_ROUNDS
    assert "11 tokens after 64 of padded prompt, greedy" in advice.reason
    assert "60%" in advice.reason


def test_advice_is_against_inference_mode_where_that_is_ready_and_says_what_is_not_resolved() -> None:
    traffic = Traffic()
    traffic.in_turn({"eager": 2e-3, "inference_mode": 1.5e-3, "compiled": 1e-3})
    advice = traffic.served.advise(1, [1], ("eager", "inference_mode", "compiled"))
    assert (advice.baseline, advice.state) == ("inference_mode", "faster")
    assert advice.speedup.value == pytest.approx(1.5, rel=0.02)
    traffic = Traffic()
    traffic.in_turn({"inference_mode": 1e-3, "compiled": 1e-3}, scatter=0.5)
    advice = traffic.served.advise(1, [1], ("inference_mode", "compiled"))
    assert advice.state == "not resolved"
    assert "may be the right one" in advice.reason


def test_whole_requests_are_compared_and_not_their_steps() -> None:
    """A mode whose prefill costs it more than its decode gains is not advised."""
    traffic = Traffic()
    for _ in range(MINIMUM_ROUNDS):
        traffic.request("eager", 1, 1.0e-3)
        traffic.request("compiled", 1, 0.8e-3, prefill_seconds=10e-3)
    assert traffic.served.advise(1, [1], ["eager", "compiled"]).mode == "eager"


def test_the_wait_in_the_queue_does_not_count() -> None:
    traffic = Traffic()
    for number in range(MINIMUM_ROUNDS):
        traffic.request("eager", 1, 2e-3)
        traffic.request("compiled", 1, 1e-3, queue_seconds=0.5 + number)
    assert traffic.served.advise(1, [1], ["eager", "compiled"]).mode == "compiled"


def test_modes_that_ran_one_after_the_other_are_not_comparable() -> None:
    """A machine that slowed down between two blocks of requests must not make a difference of them."""
    traffic = Traffic()
    for mode in MODES:
        for _ in range(50):
            traffic.request(mode, 1, 1e-3)
    with pytest.raises(NotMeasured, match=r"not comparable: .* in [01] of the 8 rounds.*compare"):
        traffic.served.advise(1, [1], MODES)


def test_requests_of_different_work_are_not_comparable() -> None:
    traffic = Traffic()
    for _ in range(20):
        traffic.request("eager", 1, 1e-3, steps=40)
        traffic.request("compiled", 1, 1e-3, steps=10)
        traffic.request("eager", 1, 1e-3, chunks=3)
        traffic.request("compiled", 1, 1e-3, temperature=0.8)
    with pytest.raises(NotMeasured, match="not comparable"):
        traffic.served.advise(1, [1], ["eager", "compiled"])


def test_the_index_is_that_of_decode_alone() -> None:
    traffic = Traffic()
    traffic.in_turn(FAST, share=0.75, steps=2, chunks=5)
    advice = traffic.served.advise(1, [1], MODES)
    assert advice.index == pytest.approx(0.25)
    assert advice.bound == "balanced"


def test_on_a_gpu_the_reason_says_the_class_of_eagers_decode() -> None:
    traffic = Traffic()
    traffic.in_turn(FAST, share=0.9)
    reason = traffic.served.advise(1, [1], MODES).reason
    assert "of eager's decode 90% of dispatch and kernel time is dispatch: launch-bound" in reason


@pytest.mark.parametrize("plain", ["inference_mode", "eager"])
def test_on_a_cpu_the_reason_says_what_a_step_of_the_best_plain_mode_would_gain_without_dispatch(
    plain: str,
) -> None:
    modes = dict.fromkeys(["eager", plain, "compiled"])
    traffic = Traffic()
    traffic.in_turn(dict.fromkeys(modes, 1e-3))
    traffic.samples("inference_mode", 0.62)
    traffic.samples("eager", 0.62 if plain == "eager" else 0.8)
    reason = traffic.served.advise(1, [1], list(modes)).reason
    assert (
        f"dispatch is 62 % (52 to 72 %) of an `{plain}` step: without it the step would be 2.6 times as fast"
        in reason
    )
    assert "-bound" not in reason


def test_a_batch_is_advised_on_by_its_bucket_and_the_crossover_lies_where_eager_turns() -> None:
    traffic = Traffic()
    traffic.in_turn(dict.fromkeys(MODES, 1e-3), 1, share=0.75)
    traffic.in_turn(dict.fromkeys(MODES, 4e-3), 4, share=0.25)
    advice = traffic.served.advise(3, [1, 4], MODES)
    assert advice.bucket == 4
    assert advice.mode == "eager"
    assert advice.bound == "kernel-bound"
    assert advice.crossover == pytest.approx(2.0, rel=0.02)


def test_too_few_rounds_are_an_error_that_names_what_to_run() -> None:
    traffic = Traffic()
    traffic.in_turn({"eager": 1e-3, "no_grad": 1e-3}, rounds=MINIMUM_ROUNDS - 1)
    with pytest.raises(NotMeasured, match=r"no request ran in compiled; POST /v1/compare.*8"):
        traffic.served.advise(1, [1], MODES)
    with pytest.raises(NotMeasured, match=r"not comparable.*in 7 of the 8"):
        traffic.served.advise(1, [1], MODES[:2])
    with pytest.raises(NotMeasured, match="fewer than two are ready"):
        traffic.served.advise(1, [1], MODES[:1])


WORK = SharedWork(stall_seconds=0.0, rows=2.0, alone=False, counted=[], counted_switches=0)


@pytest.mark.parametrize(
    ("how", "counts"),
    [
        ({"shared": WORK}, False),
        ({"shared": msgspec.structs.replace(WORK, alone=True)}, True),
        ({"profile": [StepProfile(phase="decode", steps=10, operators=1)]}, False),
        ({"sampled": True}, False),
    ],
)
def test_requests_that_something_else_slowed_do_not_count(how: dict[str, Any], counts: bool) -> None:
    traffic = Traffic()
    traffic.in_turn(FAST, **how)
    if counts:
        assert traffic.served.advise(1, [1], MODES).mode == "compiled"
    else:
        with pytest.raises(NotMeasured):
            traffic.served.advise(1, [1], MODES)


def test_no_more_kinds_of_work_are_kept_than_a_bound() -> None:
    traffic = Traffic()
    traffic.in_turn(FAST)
    for steps in range(100, 100 + WORKS_KEPT):
        traffic.request("eager", 1, 1e-3, steps=steps)
    with pytest.raises(NotMeasured, match="no request ran in"):
        traffic.served.advise(1, [1], MODES)


def test_the_route_answers_409_first_and_then_from_what_it_served(own_front: Front) -> None:
    first = own_front.http.get("/v1/advice", params={"batch_size": 1})
    assert refused(first, 409)["type"] == "not_measured"
    compared = own_front.http.post("/v1/compare", json={"prompts": ["x"], "max_new_tokens": 4, "repeats": 8})
    assert compared.status_code == 200
    until(lambda: own_front.http.get("/v1/advice").status_code == 200, "advice")
    answer = own_front.http.get("/v1/advice", params={"batch_size": 1}).json()
    assert answer["batch_size"] == 1
    assert answer["bound"] in {"launch", "balanced", "kernel", None}  # of four tokens' samples
    assert answer["speedup"]["vs"] == "inference_mode"
    assert answer["state"] in {"faster", "equivalent", "not resolved"}
    assert answer["samples"] >= 8


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"batch_size": 10_000}, {"batch": 4}])
def test_a_batch_outside_the_buckets_and_another_parameter_are_refused(
    front: Front, given: dict[str, int]
) -> None:
    assert refused(front.http.get("/v1/advice", params=given), 422)["param"] == "batch_size"


@pytest.mark.parametrize(
    ("options", "temperature", "named"),
    [
        ({"stop": ["x"]}, 0.0, "greedy, stop strings"),
        ({"top_k": 50}, 1.0, "sampled, top-k"),
        ({"top_p": 0.5, "stream": True}, 1.0, "sampled, top-p, streamed"),
    ],
)
def test_requests_that_do_more_between_their_steps_are_other_work(
    options: Mapping[str, Any], temperature: float, named: str
) -> None:
    traffic = Traffic()
    traffic.in_turn(FAST | {"compiled": 1.6e-3}, temperature=temperature)
    for _ in range(MINIMUM_ROUNDS):  # they alone would make compiled the fastest
        traffic.request("compiled", 1, 1e-3, temperature=temperature, options=options)
    assert traffic.served.advise(1, [1], MODES).mode == "no_grad"
    traffic.in_turn(FAST, rounds=MINIMUM_ROUNDS + 1, temperature=temperature, options=options)
    advice = traffic.served.advise(1, [1], MODES)
    assert advice.mode == "compiled"
    assert named in advice.reason


def test_what_ended_hours_before_the_newest_request_counts_no_more() -> None:
    traffic = Traffic()
    traffic.in_turn(FAST, rounds=4 * MINIMUM_ROUNDS)
    traffic.now_seconds += AGE_SECONDS
    traffic.request("eager", 1, 2e-3, steps=3)
    with pytest.raises(NotMeasured, match="no request ran in no_grad, compiled"):
        traffic.served.advise(1, [1], MODES)
    traffic.in_turn({"eager": 2e-3, "no_grad": 1e-3, "compiled": 1.5e-3})
    advice = traffic.served.advise(1, [1], MODES)
    assert (advice.mode, advice.speedup.samples) == ("no_grad", MINIMUM_ROUNDS)
