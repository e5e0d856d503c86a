"""`auto` runs what a sweep or the requests served here advise, and each answer says which mode and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from service.front.advice import AutoMode, ServedRequests
from service.front.settings import Settings, SweepAdvice
from service.modes import AUTO
from tests.front.test_advice import FAST, MODES, Traffic
from tests.support.outcomes import ENGINE
from tests.support.serving import Front, logged, running, until

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
