"""`/v1/modes` and `/health` report the state of each mode, and why it is not ready."""

from __future__ import annotations

import os

import pytest

from service.front.machine import machine
from service.machine import processor_name
from service.modes import default_modes
from service.records import METHOD, PHASES
from tests.support.serving import Front, refused, running, until


def test_every_configured_mode_is_listed_with_its_form_costs_and_parity(front: Front) -> None:
    answer = front.http.get("/v1/modes").json()
    assert [mode["mode"] for mode in answer["modes"]] == default_modes()
    compiled, last = answer["modes"][-2:]
    assert (compiled["state"], compiled["cache"], compiled["parity"]["passed"]) == ("ready", "cold", True)
    assert compiled["warmup_seconds"] > 0
    assert (last["requested"], last["effective"]) == ("reduce-overhead", "compiled-cpp")
    assert last["reason"]
    assert (answer["engine"]["batch_buckets"], answer["engine"]["context"]) == ([1, 4], 64)
    service = answer["service"]
    assert (service["cores"], service["cpu"]) == (os.cpu_count(), processor_name())
    assert service["method"] == METHOD
    assert {"commit", "dirty", "gpus", "python", "system", "load_average"} <= service.keys()


def test_what_requests_are_made_of_and_which_studies_there_are_is_said_before_the_engine_is_there(
    front: Front,
) -> None:
    found = front.http.get("/v1/modes").json()["workload"]
    studies = found.pop("studies")
    assert found == {
        "name": "generate", "phases": ["prefill", "decode"], "main": "decode", "step": "decode step"
    }  # fmt: skip
    with running({"model": "ranker.py:build"}, unconnected=True) as module:
        answer = module.http.get("/v1/modes").json()
        assert answer["engine"] is None
        of_module = answer["workload"].pop("studies")
        assert answer["workload"] == {
            "name": "forward", "phases": ["forward"], "main": "forward", "step": "call"
        }  # fmt: skip
        for name in studies:
            path = "/v1/probes/hidden-copy" if name == "probes" else f"/v1/studies/{name}"
            problem = module.http.post(path, json={}).json()["error"]["type"]
            assert (problem == "wrong_workload") == (name not in of_module), name


def test_each_step_of_a_mode_has_its_split_with_its_interval_and_samples(front: Front) -> None:
    splits = front.http.get("/v1/modes").json()["modes"][0]["splits"]
    steps = [(split["phase"], split["batch"]) for split in splits]
    assert steps == [(phase, batch) for phase in PHASES for batch in (1, 4)]
    split = splits[0]
    assert split["dispatch_seconds"] + split["kernel_seconds"] == pytest.approx(split["step_seconds"])
    shares = [split[name] for name in ("low", "kernel_share", "high")]
    assert shares == pytest.approx([0.3, 0.4, 0.5])
    assert split["headroom"] == pytest.approx(2.5)
    assert split["samples"] == {"kernel": 40, "host": 60, "system": 3, "unclassified": 2}


def test_the_commit_of_an_image_is_the_one_that_was_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no git
    found = machine("0123456789ab")
    assert (found["commit"], found["dirty"], found["gpus"]) == ("0123456789ab", None, [])


def test_where_nothing_is_sampled_or_measured_yet_the_answers_say_so_and_requests_are_served() -> None:
    with running({"modes": ["eager"]}, cold=True, no_samples="of a reason") as front:
        until(lambda: front.http.get("/v1/modes").json()["modes"][0]["state"] == "ready", "the mode")
        answer = until(lambda: (got := front.http.get("/v1/modes").json())["engine"] and got, "the engine")
        message = refused(front.http.get("/health/ready"), 503)["message"]
        assert message == "the engine measures its steps for the first time; ready: eager"
        assert front.generate().status_code == 200
        assert (answer["modes"][0]["splits"], answer["engine"]["no_samples"]) == ([], "of a reason")


def test_before_the_first_status_modes_are_cold_and_nothing_is_ready() -> None:
    with running({"modes": ["eager"]}, silent=True) as front:
        answer = front.http.get("/v1/modes").json()
        assert (answer["engine"], answer["modes"][0]["state"]) == (None, "cold")
        ready = front.http.get("/health/ready")
        assert refused(ready, 503)["type"] == "engine_not_ready"
        assert int(ready.headers["retry-after"]) > 0
        assert front.http.get("/health/live").status_code == 200
        assert refused(front.generate(), 503)["type"] == "engine_not_ready"


def test_ready_waits_for_every_mode_and_names_those_it_waits_for(own_front: Front) -> None:
    own_front.command("!state compiled warming")
    own_front.command("!state reduce-overhead cold")
    error = refused(own_front.http.get("/health/ready"), 503)
    assert error["message"].startswith("compiled is warming; reduce-overhead is cold; ready: eager")
    assert own_front.http.get("/health").status_code == 503
    own_front.command("!state compiled ready")
    assert "compiled is" not in refused(own_front.http.get("/health/ready"), 503)["message"]
    own_front.command("!state reduce-overhead ready")
    assert own_front.http.get("/health/ready").json()["status"] == "ready"


def test_a_failed_mode_leaves_the_others_ready_and_is_shown_as_degraded(own_front: Front) -> None:
    for path in ("/health", "/health/ready"):
        assert own_front.http.get(path).json()["degraded"] == {}
    own_front.command("!state compiled failed")
    for path in ("/health", "/health/ready"):
        answer = own_front.http.get(path)
        assert answer.status_code == 200
        assert answer.json()["degraded"] == {"compiled": "as commanded"}
        assert "compiled" not in answer.json()["modes"]


def test_where_every_mode_failed_nothing_is_ready() -> None:
    with running({"modes": ["eager", "compiled"]}, states={"eager": "failed", "compiled": "failed"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        message = refused(front.http.get("/health/ready"), 503)["message"]
        assert message == "eager failed (as commanded); compiled failed (as commanded); ready: none yet"


def test_of_failed_modes_those_that_are_required_keep_ready_at_503_and_warming_ones_always_do() -> None:
    settings = {"modes": ["eager", "no_grad", "compiled"], "require_modes": ["eager", "compiled"]}
    with running(settings, states={"no_grad": "warming"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        assert "no_grad is warming" in refused(front.http.get("/health/ready"), 503)["message"]
        front.command("!state no_grad failed")
        assert front.http.get("/health/ready").json()["degraded"] == {"no_grad": "as commanded"}
        front.command("!state compiled failed")
        message = refused(front.http.get("/health/ready"), 503)["message"]
        assert message == "compiled failed (as commanded); ready: eager"
