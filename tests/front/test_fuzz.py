"""Whatever is sent is answered as documented, in the one shape, and the engine runs on as before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.front.test_api_bad_input import GENERATE, JSON
from tests.support.raw_http import connected, send, until_closed
from tests.support.serving import Front, running

pytestmark = pytest.mark.slow

DOCUMENTED = {200, 401, 403, 404, 405, 408, 413, 415, 422, 429, 503}
"""Of the documented statuses those that a request can cause: no 500, and no 504 while nothing is slow."""

BOUNDED = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["eager", "tiny:eager", "decode", "", "\x00", "é" * 128])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)
FIELDS = (
    "prompts", "prompt", "model", "mode", "modes", "max_new_tokens", "max_tokens", "min_tokens",
    "temperature", "top_k", "top_p", "seed", "stop", "stream", "n", "best_of", "batch_size", "phase",
    "repeats", "profile", "stream_options", "x", "expression", "size", "sizes", "operations",
    "rounds", "grad",
)  # fmt: skip
GOOD: dict[str, dict[str, object]] = {
    GENERATE: {"prompts": ["a"], "max_new_tokens": 2},
    "/v1/compare": {"prompts": ["a"], "max_new_tokens": 2, "modes": ["eager"], "repeats": 1},
    "/v1/completions": {"model": "tiny:eager", "prompt": "a", "max_tokens": 2},
    "/v1/studies/operators": {"mode": "eager", "batch_size": 99},
    "/v1/studies/operator": {"expression": "torch.add(a, b)", "size": 8},
    "/v1/probes/nothing": {},
}


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """A front whose engine is at the end the one of the beginning, and answers as at the beginning.

    Its studies measure nothing: a body of any values may be a good one.
    """
    seconds = dict.fromkeys(("head_timeout_seconds", "body_timeout_seconds"), 0.1)
    anatomy = tmp_path_factory.mktemp("anatomy")
    with running({"modes": ["eager", "no_grad"], **seconds}, anatomy=anatomy) as started:
        started.await_ready()
        before, pid = started.generate().json()["outputs"], started.state.supervisor.pid
        yield started
        assert started.generate().json()["outputs"] == before
        assert started.state.supervisor.pid == pid
        assert started.series()["engine_restarts_total"] == 0


def check(status: int, body: bytes) -> None:
    assert status in DOCUMENTED, body
    if status != 200:
        error: dict[str, Any] = json.loads(body)["error"]
        assert {"type", "message", "param"} <= error.keys()
        assert error["message"]


@pytest.mark.parametrize("path", GOOD)
@BOUNDED
@given(data=st.data())
def test_a_body_of_any_values_is_answered(fuzzed: Front, path: str, data: st.DataObject) -> None:
    changed = data.draw(st.dictionaries(st.sampled_from(FIELDS), values, max_size=4))
    body = {**GOOD[path], **changed} if data.draw(st.booleans()) else data.draw(values)
    answer = fuzzed.http.post(path, content=json.dumps(body), headers=JSON)
    check(answer.status_code, answer.content)


@BOUNDED
@given(body=st.binary(max_size=300), kind=st.sampled_from(["application/json", "text/plain", ""]))
def test_a_body_of_any_bytes_is_answered(fuzzed: Front, body: bytes, kind: str) -> None:
    answer = fuzzed.http.post("/v1/completions", content=body, headers={"Content-Type": kind})
    check(answer.status_code, answer.content)


@BOUNDED
@given(
    path=st.sampled_from(["/v1/traces/", "/v1/models/", "/v1/studies/", "/v1/modes/", "/docs/", "/"])
    | st.just("/v1/advice?batch_size=")
    | st.just("/v1/modes/eager/anatomy?phase="),
    rest=st.text(max_size=200),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]),
)
def test_any_address_is_answered(fuzzed: Front, path: str, rest: str, method: str) -> None:
    url = fuzzed.http.base_url.copy_with(path="/")
    answer = fuzzed.http.request(method, str(url)[:-1] + path + quoted(rest))
    if answer.status_code != 409:  # advice without measurements
        check(answer.status_code, answer.content)


def quoted(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))


@settings(BOUNDED, max_examples=60)
@given(
    begin=st.sampled_from(
        [b"", b"GET / HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"]
    ),
    rest=st.lists(
        st.binary(max_size=60)
        | st.sampled_from(
            [b"\r\n", b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"{}"]
        ),
        max_size=8,
    ),
)
def test_any_bytes_on_a_connection_come_to_an_end(fuzzed: Front, begin: bytes, rest: list[bytes]) -> None:
    with connected(fuzzed) as connection:
        send(connection, begin + b"".join(rest) + b"\r\n\r\n")
        connection.shutdown(1)
        received = until_closed(connection)
    for part in received.split(b"HTTP/1.1 ")[1:]:
        assert int(part[:3]) in DOCUMENTED | {400, 431}
