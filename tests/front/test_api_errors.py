"""Whatever goes wrong, the answer has the one shape, its status code and its headers."""

from __future__ import annotations

import httpx
import pytest

from tests.front.test_api_bad_input import refused
from tests.support.serving import Front, exchange, running

KEY = "k3y-of-the-tests"


@pytest.fixture(scope="module")
def locked() -> object:
    with running({"api_key": KEY}) as started:
        started.await_ready()
        yield started


def test_an_unknown_path_is_a_404(front: Front) -> None:
    assert refused(front.http.get("/v1/nothing"), 404)["type"] == "not_found"


def test_a_trailing_slash_is_not_redirected(front: Front) -> None:
    refused(front.http.get("/metrics/"), 404)


def test_a_wrong_method_is_a_405_that_names_what_is_allowed(front: Front) -> None:
    answer = front.http.get("/v1/modes/eager/generate")
    assert refused(answer, 405)["type"] == "method_not_allowed"
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("command", "status", "kind"),
    [
        ("!oom", 503, "out_of_memory"),
        ("!problem out_of_memory", 503, "out_of_memory"),
        ("!problem mode_not_ready", 503, "mode_not_ready"),
        ("!problem internal", 500, "internal"),
        ("!problem something_new", 500, "something_new"),
    ],
)
def test_an_engine_problem_becomes_its_status(front: Front, command: str, status: int, kind: str) -> None:
    answer = front.command(command)
    assert refused(answer, status)["type"] == kind
    assert ("retry-after" in answer.headers) == (status == 503)


def test_a_fault_of_the_front_is_a_500_with_the_request_id(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front.state.client, "submit", lambda *_, **__: 1 / 0)
    answer = front.generate(headers={"X-Request-ID": "find-me"})
    assert refused(answer, 500)["type"] == "internal"
    assert "division" not in answer.text
    assert answer.headers["x-request-id"] == "find-me"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}"},
        {"Authorization": KEY},
        {"Authorization": "Bearer ünïcode".encode()},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/v1/modes", "/v1/compare", "/v1/modes/eager/generate"])
def test_without_the_key_a_v1_call_is_a_401(
    locked: Front, path: str, headers: dict[str, str | bytes]
) -> None:
    method = "GET" if path == "/v1/modes" else "POST"
    answer = locked.http.request(method, path, headers=headers)
    assert refused(answer, 401)["type"] == "unauthorised"
    assert answer.headers["www-authenticate"].startswith("Bearer")


def test_with_the_key_a_v1_call_is_served(locked: Front) -> None:
    assert locked.generate(headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/docs", "/openapi.json"])
def test_what_is_not_v1_needs_no_key(locked: Front, path: str) -> None:
    assert locked.http.get(path).status_code == 200


def test_the_key_is_nowhere_to_be_read(locked: Front) -> None:
    assert KEY not in repr(locked.state.settings)
    assert KEY not in locked.http.get("/v1/modes", headers={"Authorization": f"Bearer {KEY}"}).text


def test_every_answer_carries_a_request_id(front: Front) -> None:
    answers: list[httpx.Response] = [front.generate(), front.http.get("/nothing"), front.http.get("/metrics")]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 3


def test_a_given_request_id_is_taken_and_is_the_answers_id(front: Front) -> None:
    answer = front.generate(headers={"X-Request-ID": "mine-1"})
    assert answer.headers["x-request-id"] == answer.json()["id"] == "mine-1"


@pytest.mark.parametrize("given", ["x" * 129, "with space", "a,b", "née", "../a"])
def test_a_malformed_request_id_is_replaced(front: Front, given: str) -> None:
    answer = front.generate(headers={"X-Request-ID": given.encode()})  # type: ignore[dict-item]
    assert answer.status_code == 200
    assert answer.headers["x-request-id"] != given


OF_PAGES = ("/", "/lab/play", "/docs", "/docs/start.js", "/openapi.json", "/metrics")
READ_ALONE = (*OF_PAGES, "/health", "/health/live", "/health/ready", "/v1/models", "/v1/modes", "/v1/traces")


@pytest.mark.parametrize("path", [*READ_ALONE, "/v1/models/none", "/nothing"])
def test_head_is_answered_as_get_is_but_for_the_body(front: Front, path: str) -> None:
    got, head = front.http.get(path), front.http.head(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    if path != "/metrics":  # which has moved meanwhile
        assert head.headers["content-length"] == got.headers["content-length"]
    assert len(head.headers["x-request-id"]) == 32
    answer = exchange(front, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert (answer.status, answer.body) == (got.status_code, b"")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        *(("POST", path, {"GET", "HEAD"}) for path in READ_ALONE),
        ("HEAD", "/v1/completions", {"POST"}),
        ("GET", "/v1/modes/eager/generate", {"POST"}),
        ("OPTIONS", "/metrics", {"GET", "HEAD"}),
        ("DELETE", "/v1/studies/operators", {"GET", "HEAD", "POST"}),
        ("PUT", "/v1/modes/auto/generate", {"POST"}),
    ],
)
def test_another_method_is_a_405_that_names_those_there_are(
    front: Front, method: str, path: str, allowed: set[str]
) -> None:
    answer = front.http.request(method, path, headers={"Content-Type": "application/json"})
    assert answer.status_code == 405
    assert {name.strip() for name in answer.headers["allow"].split(",")} == allowed
