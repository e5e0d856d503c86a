"""Bad input gets a 4xx in the error shape, never reaches the engine, and the next request is served."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from tests.support.serving import BODY, Front

OK_PROMPTS = ["a"]
GENERATE = "/v1/modes/eager/generate"
JSON = {"content-type": "application/json"}

BAD_FIELDS: dict[str, tuple[dict[str, object], str]] = {
    "no prompts": ({"prompts": []}, "prompts"),
    "an empty prompt": ({"prompts": [""]}, "prompts"),
    "one prompt as text": ({"prompts": "abc"}, "prompts"),
    "prompts of numbers": ({"prompts": [1]}, "prompts"),
    "too many prompts": ({"prompts": ["a"] * 5}, "prompts"),
    "control characters": ({"prompts": ["a\x00b"]}, "prompts"),
    "escape characters": ({"prompts": ["\x1b[31m"]}, "prompts"),
    "C1 control characters": ({"prompts": ["\x85"]}, "prompts"),
    "null prompts": ({"prompts": None}, "prompts"),
    "zero new tokens": ({"max_new_tokens": 0}, "max_new_tokens"),
    "negative new tokens": ({"max_new_tokens": -1}, "max_new_tokens"),
    "more new tokens than the context": ({"max_new_tokens": 64}, "max_new_tokens"),
    "new tokens as text": ({"max_new_tokens": "4"}, "max_new_tokens"),
    "new tokens as fraction": ({"max_new_tokens": 4.5}, "max_new_tokens"),
    "new tokens as truth": ({"max_new_tokens": True}, "max_new_tokens"),
    "negative temperature": ({"temperature": -0.1}, "temperature"),
    "temperature as text": ({"temperature": "0"}, "temperature"),
    "zero top_k": ({"top_k": 0}, "top_k"),
    "negative seed": ({"seed": -1}, "seed"),
    "seed over 63 bits": ({"seed": 2**63}, "seed"),
    "five stop strings": ({"stop": list("abcde")}, "stop"),
    "an empty stop string": ({"stop": [""]}, "stop"),
    "stop as text": ({"stop": "a"}, "stop"),
    "stream as text": ({"stream": "true"}, "stream"),
    "an unknown field": ({"max_tokens": 4}, "max_tokens"),
}
RAW_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "broken JSON": b'{"prompts": ["a"',
    "no JSON": b"prompts=a",
    "a list": b"[]",
    "null": b"null",
    "NaN temperature": b'{"prompts": ["a"], "temperature": NaN}',
    "infinite temperature": b'{"prompts": ["a"], "temperature": Infinity}',
    "a number beyond floats": b'{"prompts": ["a"], "temperature": 1e999}',
    "a lone high surrogate": b'{"prompts": ["\\ud800"]}',
    "a lone low surrogate": b'{"prompts": ["a\\udc00b"]}',
    "no UTF-8": b'{"prompts": ["\xff"]}',
    "deep nesting": b'{"prompts": ' + b"[" * 100_000,
}


def refused(answer: httpx.Response, status: int) -> dict[str, str]:
    """The error of `answer`, checked to be in the one shape."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.json().keys() == {"error"}
    error: dict[str, str] = answer.json()["error"]
    assert error.keys() == {"type", "message", "param"}
    assert error["type"]
    assert error["message"]
    return error


@pytest.fixture
def untouched(front: Front) -> Iterator[Front]:
    """The front, checked afterwards: the engine saw nothing of the test's requests, and serves the next."""
    before = int(front.command("!served").json()["outputs"][0]["text"])
    pid = front.state.supervisor.pid
    yield front
    assert front.command("!served").json()["outputs"][0]["text"] == str(before + 1)
    assert front.state.supervisor.pid == pid


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_field_is_a_422_that_names_it(untouched: Front, fields: dict[str, object], param: str) -> None:
    assert refused(untouched.http.post(GENERATE, json={**BODY, **fields}), 422)["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"modes": []},
        {"modes": ["eager", "eager"]},
        {"repeats": 0},
        {"repeats": 51},
        {"stream": True},
        {"stream": 0},
        {"profile": True},
        {"profile": 0},
        {"mode": "eager"},
    ],
    ids=str,
)
def test_a_bad_field_of_a_comparison_is_a_422_that_names_it(
    untouched: Front, fields: dict[str, object]
) -> None:
    error = refused(untouched.http.post("/v1/compare", json={**BODY, **fields}), 422)
    assert error["param"] == next(iter(fields))


@pytest.mark.parametrize("body", RAW_BODIES.values(), ids=RAW_BODIES.keys())
@pytest.mark.parametrize("path", [GENERATE, "/v1/compare"])
def test_a_body_that_is_no_request_is_a_422(untouched: Front, path: str, body: bytes) -> None:
    refused(untouched.http.post(path, content=body, headers=JSON), 422)


def test_an_unknown_mode_is_a_404_that_names_the_known_ones(untouched: Front) -> None:
    error = refused(untouched.generate("fastest"), 404)
    assert (error["type"], error["param"]) == ("unknown_mode", "mode")
    assert "reduce-overhead" in error["message"]


def test_an_unknown_mode_in_a_comparison_is_a_404(untouched: Front) -> None:
    answer = untouched.http.post("/v1/compare", json={**BODY, "modes": ["eager", "fastest"]})
    assert refused(answer, 404)["type"] == "unknown_mode"


def test_a_body_over_the_limit_is_a_413(untouched: Front) -> None:
    body = json.dumps({"prompts": ["x" * 50_000_000]}).encode()
    assert refused(untouched.http.post(GENERATE, content=body, headers=JSON), 413)["type"] == "body_too_large"


def test_a_body_over_the_limit_without_a_length_is_a_413(untouched: Front) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(64):
            yield b" " * 65_536

    assert (
        refused(untouched.http.post(GENERATE, content=endless(), headers=JSON), 413)["type"]
        == "body_too_large"
    )


def test_a_body_at_the_limit_is_read(front: Front) -> None:
    padding = front.state.settings.max_body_bytes - len(json.dumps(BODY))
    assert (
        front.http.post(GENERATE, content=json.dumps(BODY) + " " * padding, headers=JSON).status_code == 200
    )


@pytest.mark.parametrize("text", ["line\nline", "tab\treturn\r", "ünïcödé 🐍 \U0010ffff", "\u2028", " "])
def test_text_that_people_send_is_served(front: Front, text: str) -> None:
    assert front.generate(prompts=[text]).status_code == 200


def test_a_prompt_over_the_context_is_the_engines_422(front: Front) -> None:
    answer = front.command("!problem prompt_too_long")
    assert refused(answer, 422)["type"] == "prompt_too_long"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (GENERATE, {"prompts": ["a"], "max_new_tokens": 2.0, "seed": 7.0, "top_k": 5e0}),
        ("/v1/compare", {"prompts": ["a"], "max_new_tokens": 2.0, "repeats": 1.0, "modes": ["eager"]}),
        ("/v1/completions", {"model": "tiny:eager", "prompt": [5.0, 6], "max_tokens": 2.0, "n": 1.0}),
        ("/v1/completions", {"model": "tiny:eager", "prompt": [[5.0], [6]], "max_tokens": 2}),
    ],
)
def test_an_integer_may_be_written_with_a_point(front: Front, path: str, fields: dict[str, object]) -> None:
    answer = front.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text


def test_the_input_is_not_echoed(untouched: Front) -> None:
    assert "secret" not in untouched.http.post(GENERATE, json={**BODY, "seed": "secret"}).text


def test_an_empty_body_is_called_empty(front: Front) -> None:
    answer = front.http.post(
        "/v1/modes/eager/generate", content=b"", headers={"Content-Type": "application/json"}
    )
    assert "the body is empty: send a JSON object" in refused(answer, 422)["message"]
