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


def test_each_step_of_a_mode_has_its_split_with_its_interval_and_samples(front: Front) -> None:
    splits = front.http.get("/v1/modes").json()["modes"][0]["splits"]
    places = [(split["phase"], split["batch"]) for split in splits]
    assert places == [(phase, batch) for phase in PHASES for batch in (1, 4)]
    split = splits[0]
    assert split["dispatch_seconds"] + split["kernel_seconds"] == pytest.approx(split["step_seconds"])
    shares = [split[name] for name in ("low", "kernel_share", "high")]
    assert shares == pytest.approx([0.3, 0.4, 0.5])
    assert split["headroom"] == pytest.approx(2.5)
    assert split["samples"] == {"kernel": 40, "host": 60, "system": 3, "unclassified": 2}


def test_where_nothing_is_sampled_modes_have_no_splits_and_the_engine_says_why() -> None:
    with running({"modes": ["eager"]}, no_samples="of a reason") as front:
        front.await_ready()
        answer = front.http.get("/v1/modes").json()
    assert answer["modes"][0]["splits"] == []
    assert answer["engine"]["no_samples"] == "of a reason"


def test_the_commit_of_an_image_is_the_one_that_was_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")  # no git, no nvidia-smi
    found = machine("0123456789ab")
    assert (found["commit"], found["dirty"], found["gpus"]) == ("0123456789ab", None, [])


def test_a_service_is_ready_once_its_steps_have_been_measured_and_serves_before() -> None:
    with running({"modes": ["eager"]}, cold=True) as front:
        until(lambda: front.http.get("/v1/modes").json()["modes"][0]["state"] == "ready", "the mode")
        message = refused(front.http.get("/health/ready"), 503)["message"]
        assert message == "the engine measures its steps for the first time; ready: eager"
        assert front.generate().status_code == 200


def test_before_the_first_status_modes_are_cold_and_nothing_is_ready() -> None:
    with running({"modes": ["eager"]}, silent=True) as front:
        answer = front.http.get("/v1/modes").json()
        assert (answer["engine"], answer["modes"][0]["state"]) == (None, "cold")
        ready = front.http.get("/health/ready")
        assert refused(ready, 503)["type"] == "engine_not_ready"
        assert int(ready.headers["retry-after"]) > 0
        assert front.http.get("/health/live").status_code == 200
        assert refused(front.generate(), 503)["type"] == "engine_not_ready"


def test_ready_waits_for_every_mode_and_names_those_it_waits_for() -> None:
    with running(states={"compiled": "warming", "reduce-overhead": "cold"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        error = refused(front.http.get("/health/ready"), 503)
        assert error["message"].startswith("compiled is warming; reduce-overhead is cold; ready: eager")
        assert front.http.get("/health").status_code == 503
        front.command("!state compiled ready")
        assert "compiled is" not in refused(front.http.get("/health/ready"), 503)["message"]
        front.command("!state reduce-overhead ready")
        assert front.http.get("/health/ready").json()["status"] == "ready"


def test_a_failed_mode_leaves_the_others_ready_and_is_shown_as_degraded(own_front: Front) -> None:
    for path in ("/health", "/health/ready"):
        assert own_front.http.get(path).json()["degraded"] == {}
    own_front.command("!state compiled failed")
    for path in ("/health", "/health/ready"):
        answer = own_front.http.get(path)
        assert answer.status_code == 200
        assert answer.json()["degraded"] == {"compiled": "as commanded"}
        assert "compiled" not in answer.json()["modes"]
    series = own_front.series()
    assert (series['mode_failed{mode="compiled"}'], series['mode_failed{mode="eager"}']) == (1, 0)


def test_where_every_mode_failed_nothing_is_ready() -> None:
    with running({"modes": ["eager", "compiled"]}, states={"eager": "failed", "compiled": "failed"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        message = refused(front.http.get("/health/ready"), 503)["message"]
        assert message == "eager failed (as commanded); compiled failed (as commanded); ready: none yet"


def test_a_required_mode_that_failed_keeps_ready_at_503_with_its_reason() -> None:
    settings = {"modes": ["eager", "no_grad", "compiled"], "require_modes": ["eager", "compiled"]}
    with running(settings, states={"no_grad": "failed"}) as front:
        front.await_ready()
        front.command("!state compiled failed")
        message = refused(front.http.get("/health/ready"), 503)["message"]
        assert message == "compiled failed (as commanded); ready: eager"


def test_what_is_not_required_is_waited_for_while_it_warms_up() -> None:
    settings = {"modes": ["eager", "compiled"], "require_modes": ["eager"]}
    with running(settings, states={"compiled": "warming"}) as front:
        until(lambda: front.state.client.engine is not None, "the engine's status")
        assert "compiled is warming" in refused(front.http.get("/health/ready"), 503)["message"]
        front.command("!state compiled failed")
        assert front.http.get("/health/ready").json()["degraded"] == {"compiled": "as commanded"}


@pytest.mark.slow
def test_an_engine_that_never_starts_makes_live_fail_with_the_reason() -> None:
    with running(exit=9) as front:
        front.state.supervisor.failures.first_retry_seconds = 0.01
        until(lambda: front.http.get("/health/live").status_code == 503, "the failure")
        message = refused(front.http.get("/health/live"), 503)["message"]
        assert "the engine ended 5 times" in message
        assert "exit code 9" in message
