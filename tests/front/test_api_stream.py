"""Streaming: tokens as they arrive, then one last event with the whole answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.support.serving import BODY, Front, running, until

Event = tuple[str, dict[str, Any]]


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Server-sent events from their lines."""
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def stream(front: Front, **body: object) -> list[Event]:
    answer = front.generate(stream=True, **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    return list(events(answer.text.splitlines()))


def test_tokens_come_in_order_and_the_last_event_is_the_answer(front: Front) -> None:
    got = stream(front, prompts=["a", "b"], max_new_tokens=3)
    assert [name for name, _ in got] == ["token"] * 6 + ["result"]
    result = got[-1][1]
    for index in (0, 1):
        text = "".join(data["text"] for name, data in got if name == "token" and data["index"] == index)
        assert text == result["outputs"][index]["text"]


def test_the_last_event_is_what_a_plain_request_answers(front: Front) -> None:
    result = stream(front)[-1][1]
    plain = front.generate().json()
    assert result.keys() == plain.keys()
    assert result["timings"].keys() == plain["timings"].keys()
    assert result["outputs"] == plain["outputs"]


def test_the_first_token_leaves_before_the_job_has_ended(own_front: Front) -> None:
    body = {**BODY, "prompts": ["!hold"], "stream": True}
    with own_front.http.stream("POST", "/v1/modes/eager/generate", json=body) as answer:
        arriving = events(answer.iter_lines())
        assert next(arriving)[0] == "token"
        assert own_front.state.client.in_progress()["eager"] == 1
        own_front.command("!release")
        assert list(arriving)[-1][0] == "result"


def test_a_failure_before_the_first_token_is_a_plain_error(front: Front) -> None:
    answer = front.command("!problem prompt_too_long", stream=True)
    assert answer.status_code == 422
    assert answer.json()["error"]["type"] == "prompt_too_long"


def test_a_failure_in_mid_stream_is_an_error_event_in_the_one_shape(own_front: Front) -> None:
    got = stream(own_front, prompts=["!die-after-tokens"])
    assert {name for name, _ in got[:-1]} == {"token"}
    assert got[-1][0] == "error"
    assert got[-1][1]["error"].keys() == {"type", "message", "param"}
    assert got[-1][1]["error"]["type"] == "engine_lost"


def test_a_deadline_in_mid_stream_is_an_error_event() -> None:
    with running({"request_timeout_seconds": 0.3}) as front:
        front.await_ready()
        assert stream(front, prompts=["!hold"])[-1][1]["error"]["type"] == "timeout"
        assert front.series()['requests_total{mode="eager",outcome="timeout"}'] == 1


def test_a_stream_that_shutting_down_cuts_off_is_an_error_event_and_counted(own_front: Front) -> None:
    body = {**BODY, "prompts": ["!hold"], "stream": True}
    with own_front.http.stream("POST", "/v1/modes/eager/generate", json=body) as answer:
        arriving = events(answer.iter_lines())
        next(arriving)
        client = own_front.state.client
        loop = own_front.state.supervisor._task.get_loop()
        loop.call_soon_threadsafe(client.abandon)
        assert list(arriving)[-1][1]["error"]["type"] == "shut_down"
    series = own_front.series()
    assert series['requests_total{mode="eager",outcome="error"}'] == 1
    assert series['requests_rejected_total{reason="draining"}'] == 0


def test_a_client_that_leaves_a_stream_is_cancelled_in_the_engine(own_front: Front) -> None:
    body = {**BODY, "prompts": ["!hold"], "stream": True}
    headers = {"X-Request-ID": "leaver"}
    with own_front.http.stream("POST", "/v1/modes/eager/generate", json=body, headers=headers) as answer:
        next(answer.iter_lines())
    until(lambda: not own_front.state.client.in_progress(), "the job's end")
    assert own_front.command("!cancelled").json()["outputs"][0]["text"] == "leaver"
    assert own_front.series()['requests_total{mode="eager",outcome="cancelled"}'] == 1


def test_a_stream_is_observed_once(own_front: Front) -> None:
    stream(own_front)
    assert own_front.series()['request_duration_seconds_count{mode="eager"}'] == 1
    assert own_front.series()['requests_total{mode="eager",outcome="ok"}'] == 1
