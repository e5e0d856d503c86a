"""Admission, deadlines, clients that go away, requests of the lab during a sweep, and shutting down."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from service.front import study_runner
from tests.support.serving import BODY, Front, logged, refused, until


def test_over_the_queue_a_request_is_a_429_and_those_before_it_are_served(own_front: Front) -> None:
    client = own_front.state.client
    client.max_queue = 2
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(own_front.command, "!hold")
        until(lambda: client.in_progress().total() == 1, "the held request")
        second = pool.submit(own_front.command, "!hold")
        until(lambda: client.in_progress().total() == 2, "the waiting request")
        answer = own_front.generate()
        assert refused(answer, 429)["type"] == "queue_full"
        assert int(answer.headers["retry-after"]) > 0
        client.max_queue = 3
        assert own_front.command("!release").status_code == 200
        assert first.result().status_code == second.result().status_code == 200


def test_a_passed_deadline_is_a_504_and_the_next_request_is_served(own_front: Front) -> None:
    with own_front.going_by(request_timeout_seconds=0.2):
        assert refused(own_front.command("!hold"), 504)["type"] == "timeout"
        assert own_front.generate().status_code == 200
    assert own_front.moved()['requests_total{mode="eager",outcome="timeout"}'] == 1


def test_what_was_accepted_and_not_served_at_the_end_is_an_error_and_no_refusal(own_front: Front) -> None:
    client = own_front.state.client
    with logged() as log, ThreadPoolExecutor(8) as pool:
        accepted = [pool.submit(own_front.command, "!hold") for _ in range(8)]
        until(lambda: client.in_progress().total() == 8, "the accepted requests")
        loop = own_front.state.supervisor._task.get_loop()
        asyncio.run_coroutine_threadsafe(client.drain(0.0), loop).result()
        errors = [refused(one.result(), 503) for one in accepted]
    assert {one["type"] for one in errors} == {"shut_down"}
    series = own_front.moved()
    assert series['requests_total{mode="eager",outcome="error"}'] == 8
    assert series['requests_total{mode="eager",outcome="rejected"}'] == 0
    assert series['requests_rejected_total{reason="draining"}'] == 0
    lines = log.objects("request")
    assert [(line["outcome"], line["error"]) for line in lines] == [("error", "shut_down")] * 8
    (line,) = log.objects("engine")
    assert line["level"] == "error"
    assert "shut down before 8 accepted requests were answered" in line["message"]


def test_a_comparison_that_has_begun_is_finished_while_draining(own_front: Front, tmp_path: Path) -> None:
    client = own_front.state.client
    body = {**BODY, "prompts": [f"!hold {tmp_path / 'go'}"], "modes": ["eager", "no_grad"], "repeats": 1}
    with ThreadPoolExecutor(2) as pool:
        comparison = pool.submit(own_front.http.post, "/v1/compare", json=body)
        until(lambda: client.in_progress().total() == 1, "its first run")
        loop = own_front.state.supervisor._task.get_loop()
        drain = asyncio.run_coroutine_threadsafe(client.drain(60.0), loop)
        until(lambda: client.draining, "draining")
        (tmp_path / "go").touch()
        assert comparison.result().status_code == 200
        drain.result()


def test_the_engine_that_dies_fails_what_it_had_and_a_new_one_serves(own_front: Front) -> None:
    pid = own_front.state.supervisor.pid
    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(own_front.command, "!hold")
        until(lambda: own_front.state.client.in_progress().total() == 1, "the held request")
        waiting = pool.submit(own_front.command, "!kill")
        until(lambda: own_front.state.client.in_progress().total() == 2, "the waiting request")
        own_front.command("!release")
        holding.result()
        answer = waiting.result()
    assert refused(answer, 503)["type"] == "engine_lost"
    assert "SIGKILL" in answer.json()["error"]["message"]
    meanwhile = own_front.generate()
    assert refused(meanwhile, 503)["type"] == "engine_not_ready"
    assert int(meanwhile.headers["retry-after"]) > 0
    own_front.await_ready()
    assert own_front.generate().status_code == 200
    assert own_front.state.supervisor.pid != pid
    assert own_front.moved()["engine_restarts_total"] == 1
    assert own_front.series()["engine_up"] == 1


LAB = {"X-Launchbound-Client": "lab"}
SWEEP = {"X-Launchbound-Run": "20260101-1"}


@pytest.fixture
def swept(own_front: Front) -> Front:
    assert own_front.generate(headers=SWEEP).status_code == 200
    return own_front


def refused_for_a_sweep(answer: httpx.Response) -> None:
    assert refused(answer, 409)["type"] == "run_in_progress"
    assert 0 < int(answer.headers["retry-after"]) <= study_runner.RUN_SECONDS


def test_during_a_sweep_a_request_of_the_lab_is_refused_and_counted_nowhere(swept: Front) -> None:
    refused_for_a_sweep(swept.generate(headers=LAB))
    refused_for_a_sweep(swept.generate(headers=LAB, stream=True))
    refused_for_a_sweep(swept.http.post("/v1/compare", json={**BODY, "repeats": 1}, headers=LAB))
    series = swept.moved()
    assert sum(value for name, value in series.items() if name.startswith("requests_total{")) == 1
    assert not any(value for name, value in series.items() if name.startswith("requests_rejected_total"))


def test_others_are_served_during_a_sweep_and_the_lab_after_it(
    swept: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert swept.generate().status_code == 200
    monkeypatch.setattr(study_runner, "RUN_SECONDS", 0.0)
    assert swept.generate(headers=LAB).status_code == 200
    assert swept.state.studies.sweeps.seconds_left() == 0.0
