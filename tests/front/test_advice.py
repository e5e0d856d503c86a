"""Advice: the answer that the measured requests imply; `auto` runs what it or a sweep advises."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from service.front.advice import AGE_SECONDS, WORKS_KEPT, AutoMode, ServedRequests
from service.front.errors import NotMeasured
from service.front.request_timing import add_up
from service.front.settings import Settings, SweepAdvice
from service.modes import AUTO
from service.records import ModeStatus, SampleCounts, SharedWork, StepProfile
from service.statistics.choice import MINIMUM_ROUNDS
from tests.support.outcomes import ENGINE, JOB, outcome, phase, split
from tests.support.serving import Front, logged, refused, running, until

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
    traffic.in_turn(FAST, share=0.9)
    advice = traffic.served.advise(1, [1, 4], MODES)
    assert advice.mode == "compiled"
    assert advice.speedup.value == pytest.approx(2.0, rel=0.02)
    assert advice.speedup.low < advice.speedup.value < advice.speedup.high
    assert advice.speedup.samples == MINIMUM_ROUNDS
    assert "11 tokens after 64 of padded prompt, greedy" in advice.reason
    of_a_gpu = "of eager's decode 90% of dispatch and kernel time is dispatch: launch-bound"
    assert of_a_gpu in advice.reason


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


# `auto` runs what a sweep or the requests served here advise, and each answer says which mode and why


ADVICE: dict[str, Any] = {
    "format_version": 2,
    "valid": True,
    "model": "tiny",
    "model_hash": "0",
    "device_name": "fake",
    "dtype": "float32",
    "commit": "0123456789ab",
    "batches": [
        {"batch_size": 1, "mode": "compiled", "state": "faster", "reason": "2.5× the speed of eager"},
        {"batch_size": 4, "mode": "no_grad", "state": "equivalent", "reason": "1.2× the speed of eager"},
    ],
}
"""Of a sweep of the fake engine, at its batch sizes."""

SERVED = ENGINE.modes


def advice(**changes: Any) -> SweepAdvice:
    return msgspec.convert({**ADVICE, "folder": "results/a-sweep", **changes}, SweepAdvice)


def written(folder: Path, **changes: Any) -> Path:
    (folder / "advice.json").write_text(json.dumps({**ADVICE, **changes}))
    return folder


def auto(
    found: SweepAdvice | None = None, modes: list[str] = SERVED, served: ServedRequests | None = None
) -> AutoMode:
    """With an engine that has reported its status."""
    made = AutoMode(modes, [1, 4], found, served or ServedRequests())
    made.engine(ENGINE)
    return made


# ---------------------------------------------------------------- which mode


def test_without_any_advice_it_is_the_best_mode_without_a_compiler() -> None:
    asked = auto().pick(1, SERVED)
    assert (asked.requested, asked.mode) == (AUTO, "inference_mode")
    assert asked.reason is not None
    assert asked.reason.startswith("nothing advises on batch bucket 1")
    assert auto(modes=["no_grad", "compiled"]).pick(1, SERVED).mode == "no_grad"


@pytest.mark.parametrize("batches", [[{**one, "state": "not resolved"} for one in ADVICE["batches"]], []])
def test_a_bucket_that_the_sweep_has_not_decided_is_nobodys(batches: list[dict[str, Any]]) -> None:
    asked = auto(advice(batches=batches)).pick(4, SERVED)
    assert asked.mode == "inference_mode"
    assert "a-sweep (commit 0123456789ab) has no answer for it" in str(asked.reason)


@pytest.mark.parametrize(
    ("swept", "ready", "mode", "reason"),
    [
        (True, ["eager", "inference_mode"], "inference_mode", "compiled is not ready, so inference_mode"),
        (True, ["no_grad", "eager"], "eager", "compiled and inference_mode are not ready, so eager runs"),
        (False, ["no_grad"], "no_grad", "inference_mode is not ready, so no_grad runs meanwhile; nothing "),
        (True, [], "inference_mode", "compiled is not ready"),
    ],
)
def test_an_advised_mode_that_is_not_ready_is_replaced_meanwhile_and_the_reason_says_so(
    swept: bool, ready: list[str], mode: str, reason: str
) -> None:
    asked = auto(advice() if swept else None).pick(1, ready)
    assert asked.mode == mode
    assert str(asked.reason).startswith(reason)


def advised_by_requests(
    step_seconds: Mapping[str, float] = FAST, found: SweepAdvice | None = None
) -> AutoMode:
    """After one comparison of requests that took so long per step."""
    traffic = Traffic()
    traffic.in_turn(step_seconds)
    made = auto(found, served=traffic.served)
    made.learn(1, MODES)
    return made


def test_what_requests_have_advised_is_kept_when_later_ones_would_not_suffice_or_are_not_resolved() -> None:
    """`auto` itself runs one mode alone, of which no advice can come."""
    made = advised_by_requests()
    unresolved = Traffic()
    unresolved.in_turn(dict.fromkeys(MODES, 1e-3), rounds=20, scatter=0.6)
    for served in (ServedRequests(), unresolved.served):
        made._served = served
        made.learn(1, MODES)
        assert made.pick(1, SERVED).mode == "compiled"


def test_equal_modes_are_told_apart_in_at_most_one_service_of_twenty_however_often_they_are_compared() -> (
    None
):
    """In each of 60 services requests are compared after each of 100 rounds; 5 % and its own error."""
    told_apart = 0
    for seed in range(60):
        traffic = Traffic()
        traffic.random.seed(seed)
        made = auto(served=traffic.served)
        for _ in range(100):
            traffic.in_turn({"inference_mode": 1e-3, "compiled": 1e-3}, rounds=1, scatter=0.3)
            made.learn(1, ("inference_mode", "compiled"))
        told_apart += made.pick(1, SERVED).mode == "compiled"
    assert told_apart <= 60 * 0.05 + 2 * (60 * 0.05 * 0.95) ** 0.5


def test_a_sweep_goes_before_what_requests_advise() -> None:
    made = advised_by_requests(FAST | {"no_grad": 0.5e-3}, advice())
    assert made.pick(1, SERVED).mode == "compiled"


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        ({"device_name": "another CPU"}, "its device name is another CPU, and here it is fake"),
        ({"dtype": "bfloat16"}, "its dtype is bfloat16, and here it is float32"),
        ({"model_hash": "1"}, "its model hash is 1, and here it is 0"),
    ],
)
def test_advice_of_another_engine_is_not_used_and_that_is_said_once_and_in_each_answer(
    fact: dict[str, str | None], shown: str
) -> None:
    with logged() as log:
        made = auto(advice(**fact))
        made.engine(ENGINE)
    (line,) = map(json.loads, log.lines)
    assert line["level"] == "warning"
    assert shown in line["message"]
    assert made.pick(1, SERVED).mode == "inference_mode"
    assert shown in str(made.pick(1, SERVED).reason)
    traffic = Traffic()
    traffic.in_turn(FAST)
    made._served = traffic.served
    made.learn(1, MODES)
    assert made.pick(1, SERVED).mode == "compiled"
    assert shown in str(made.pick(1, SERVED).reason)


# ---------------------------------------------------------------- what is refused at the start


@pytest.mark.parametrize(
    ("changes", "given", "remedy"),
    [
        ({"valid": False}, {}, "is not valid, as its report says: sweep again"),
        ({"format_version": 1}, {}, "has format 1, this version reads 2: write it again by `launchbound"),
        ({"batches": 3}, {}, "cannot be read .*`launchbound report .*` writes it again"),
        ({}, {"modes": ["eager", "no_grad"]}, "advises compiled, which is not served: add it to --modes"),
        ({}, {"model": "small"}, "is of model tiny, and this service of small: sweep this one"),
    ],
)
def test_advice_that_cannot_be_followed_is_refused_with_the_remedy(
    tmp_path: Path, changes: dict[str, Any], given: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ValidationError, match=remedy):
        Settings(advice=written(tmp_path, **changes), **given)


def test_what_is_no_folder_or_has_no_advice_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=f"`launchbound report {tmp_path}` writes it"):
        Settings(advice=tmp_path)
    for path in (tmp_path / "missing", written(tmp_path) / "advice.json"):
        with pytest.raises(ValidationError, match=f"{path} is no folder: name the one that a sweep wrote"):
            Settings(advice=path)


# ---------------------------------------------------------------- over HTTP


@pytest.fixture(scope="module")
def advised(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A front whose sweep advises `reduce-overhead` at batch 1 and `no_grad` at 4."""
    fast = {"batch_size": 1, "mode": "reduce-overhead", "state": "faster", "reason": "it is fast"}
    batches = [fast, ADVICE["batches"][1]]
    folder = written(tmp_path_factory.mktemp("swept"), batches=batches)
    with running({"advice": folder}) as front:
        front.await_ready()
        yield front


def test_an_answer_names_what_was_picked_what_it_ran_as_and_both_reasons(advised: Front) -> None:
    mode = advised.generate(AUTO).json()["mode"]
    assert mode.keys() == {"requested", "effective", "reason", "picked"}
    named = (mode["requested"], mode["picked"], mode["effective"])
    assert named == (AUTO, "reduce-overhead", "compiled-cpp")
    assert "at batch 1: it is fast; a CPU has no CUDA graphs" in mode["reason"]
    larger = advised.generate(AUTO, prompts=["a", "b"]).json()
    assert (larger["batch_bucket"], larger["mode"]["picked"]) == (4, "no_grad")
    job = json.loads(advised.generate(AUTO, prompts=["!job"]).json()["outputs"][0]["text"])
    assert job["mode"] == "reduce-overhead"
    message = advised.generate("fast").json()["error"]["message"]
    assert message.endswith(", reduce-overhead, auto")


def test_a_stream_ends_with_the_same_and_a_completion_has_it_too(advised: Front) -> None:
    events = advised.generate(AUTO, stream=True).text
    result = json.loads(events.split("event: result\ndata: ")[1])
    assert result["mode"]["picked"] == "reduce-overhead"
    asked = {"model": "tiny:auto", "prompt": ["a", "b"], "max_tokens": 2}
    plain = advised.http.post("/v1/completions", json=asked).json()
    assert (plain["model"], plain["launchbound"]["mode"]["picked"]) == ("tiny:auto", "no_grad")
    # Copies of a prompt are rows of the batch, by which the mode is picked.
    copies = advised.http.post("/v1/completions", json={**asked, "prompt": "a", "n": 3}).json()
    assert copies["launchbound"]["mode"]["picked"] == "no_grad"
    streamed = advised.http.post("/v1/completions", json={**asked, "stream": True}).text
    last = json.loads(streamed.split("data: ")[-2])
    assert last["launchbound"]["mode"]["requested"] == AUTO


def test_a_request_is_counted_logged_and_learnt_from_as_the_mode_that_ran(advised: Front) -> None:
    counted = 'requests_total{mode="reduce-overhead",outcome="ok"}'
    before = advised.series()[counted]
    with logged() as lines:
        advised.generate(AUTO, {"X-Request-ID": "auto-one"})
        found = until(
            lambda: [one for one in lines.objects("request") if one["id"] == "auto-one"], "its line"
        )
    assert [one["mode"] for one in found] == ["reduce-overhead"]
    assert advised.series()[counted] == before + 1
    assert not [name for name in advised.series() if f'mode="{AUTO}"' in name]
    served = advised.state.statistics._served.values()
    assert AUTO not in {request.mode for requests in served for request in requests}


def test_modes_say_what_advises_on_every_bucket(advised: Front) -> None:
    answer = advised.http.get("/v1/modes").json()
    assert AUTO not in {mode["mode"] for mode in answer["modes"]}
    assert [(one["batch_bucket"], one["mode"], one["source"]) for one in answer["auto"]["batches"]] == [
        (1, "reduce-overhead", "sweep"),
        (4, "no_grad", "sweep"),
    ]
    assert answer["auto"]["default"] == "inference_mode"
    assert answer["auto"]["unused"] is None
    assert "(commit 0123456789ab)" in answer["auto"]["sweep"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/compare", {"prompts": ["x"], "modes": ["eager", AUTO]}),
        ("/v1/studies/operators", {"mode": AUTO}),
    ],
)
def test_what_measures_a_mode_refuses_it(advised: Front, path: str, body: dict[str, Any]) -> None:
    assert advised.http.post(path, json=body).status_code in (404, 422)
    assert advised.http.get(f"/v1/modes/{AUTO}/anatomy").status_code == 404


def test_a_refusal_is_counted_under_the_mode_that_was_picked_and_before_that_under_none() -> None:
    rejected = 'requests_total{mode="inference_mode",outcome="rejected"}'
    reason = 'requests_rejected_total{reason="%s"}'
    with running({"modes": ["inference_mode"]}, states={"inference_mode": "warming"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        before = front.series()
        assert front.generate(AUTO, prompts=[]).status_code == 422
        middle = front.series()
        assert middle[reason % "bad_request"] == before[reason % "bad_request"] + 1
        assert middle[rejected] == before[rejected]
        refused = front.generate(AUTO)
        assert refused.json()["error"]["type"] == "mode_not_ready"
        assert front.generate(AUTO, stream=True).status_code == 503
        asked = {"model": "tiny:auto", "prompt": "a"}
        assert front.http.post("/v1/completions", json=asked).status_code == 503
        after = front.series()
        assert after[rejected] == middle[rejected] + 3
        assert after[reason % "not_ready"] == middle[reason % "not_ready"] + 3
