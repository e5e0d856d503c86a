"""Bad input gets a 4xx in the error shape, bounded in what it costs, and never reaches the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from service.front.routes import generate, openai
from service.front.routes.body import BodyReader
from service.front.schemas import GenerateBody, PlainGeneration
from tests.support.serving import BODY, GENERATE, JSON, Front, refused, running

COMPARE, COMPLETE = "/v1/compare", "/v1/completions"

BAD_FIELDS: dict[str, tuple[str, dict[str, object]]] = {
    "no prompts": (GENERATE, {"prompts": []}),
    "an empty prompt": (GENERATE, {"prompts": [""]}),
    "too many prompts": (GENERATE, {"prompts": ["a"] * 5}),
    "control characters": (GENERATE, {"prompts": ["a\x00b"]}),
    "more new tokens than the context": (GENERATE, {"max_new_tokens": 64}),
    "seed over 63 bits": (GENERATE, {"seed": 2**63}),
    "five stop strings": (GENERATE, {"stop": list("abcde")}),
    "an empty stop string": (GENERATE, {"stop": [""]}),
    "an unknown field": (GENERATE, {"max_tokens": 4}),
    "a mode twice": (COMPARE, {"modes": ["eager", "eager"]}),
    "many repeats": (COMPARE, {"repeats": 51}),
    "a stream": (COMPARE, {"stream": True}),
    "one mode": (COMPARE, {"mode": "eager"}),
}
RAW_BODIES: dict[str, bytes] = {
    "nothing": b"",
    "broken JSON": b'{"prompts": ["a"',
    "a list": b"[]",
    "NaN temperature": b'{"prompts": ["a"], "temperature": NaN}',
    "a lone high surrogate": b'{"prompts": ["\\ud800"]}',
    "no UTF-8": b'{"prompts": ["\xff"]}',
    "deep nesting": b'{"prompts": ' + b"[" * 100_000,
}


@pytest.fixture
def untouched(front: Front) -> Iterator[Front]:
    """The front, checked afterwards: the engine saw nothing of the test's requests, and serves the next."""
    before = int(front.command("!served").json()["outputs"][0]["text"])
    pid = front.state.supervisor.pid
    yield front
    assert front.command("!served").json()["outputs"][0]["text"] == str(before + 1)
    assert front.state.supervisor.pid == pid


@pytest.mark.parametrize(("path", "fields"), BAD_FIELDS.values(), ids=BAD_FIELDS.keys())
def test_a_bad_field_is_a_422_that_names_it(untouched: Front, path: str, fields: dict[str, object]) -> None:
    error = refused(untouched.http.post(path, json={**BODY, **fields}), 422)
    assert error["param"] == next(iter(fields))


@pytest.mark.parametrize("body", RAW_BODIES.values(), ids=RAW_BODIES.keys())
@pytest.mark.parametrize("path", [GENERATE, COMPARE])
def test_a_body_that_is_no_request_is_a_422(untouched: Front, path: str, body: bytes) -> None:
    error = refused(untouched.http.post(path, content=body, headers=JSON), 422)
    assert body or "the body is empty: send a JSON object" in error["message"]


@pytest.mark.parametrize("path", ["/v1/modes/fastest/generate", COMPARE])
def test_an_unknown_mode_is_a_404_that_names_the_known_ones(untouched: Front, path: str) -> None:
    modes = {"modes": ["eager", "fastest"]} if path == COMPARE else {}
    error = refused(untouched.http.post(path, json={**BODY, **modes}), 404)
    assert error["type"] == "unknown_mode"
    assert "reduce-overhead" in error["message"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_a_413_with_and_without_a_length(untouched: Front, chunked: bool) -> None:
    body = iter([b" " * 65_536] * 64) if chunked else json.dumps({"prompts": ["x" * 50_000_000]}).encode()
    assert refused(untouched.http.post(GENERATE, content=body, headers=JSON), 413)["type"] == "body_too_large"


def test_a_body_at_the_limit_is_read(front: Front) -> None:
    padding = front.state.settings.max_body_bytes - len(json.dumps(BODY))
    answer = front.http.post(GENERATE, content=json.dumps(BODY) + " " * padding, headers=JSON)
    assert answer.status_code == 200


@pytest.mark.parametrize("text", ["line\nline", "tab\treturn\r", "ünïcödé 🐍 \U0010ffff", "\u2028", " "])
def test_text_that_people_send_is_served(front: Front, text: str) -> None:
    assert front.generate(prompts=[text]).status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (GENERATE, {"prompts": ["a"], "max_new_tokens": 2.0, "seed": 7.0, "top_k": 5e0}),
        (COMPARE, {"prompts": ["a"], "max_new_tokens": 2.0, "repeats": 1.0, "modes": ["eager"]}),
        (COMPLETE, {"model": "tiny:eager", "prompt": [5.0, 6], "max_tokens": 2.0, "n": 1.0}),
        (COMPLETE, {"model": "tiny:eager", "prompt": [[5.0], [6]], "max_tokens": 2}),
    ],
)
def test_an_integer_may_be_written_with_a_point(front: Front, path: str, fields: dict[str, object]) -> None:
    answer = front.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text


def test_the_input_is_not_echoed(untouched: Front) -> None:
    assert "secret" not in untouched.http.post(GENERATE, json={**BODY, "seed": "secret"}).text


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [("prompts", ["a", 1], "prompts[1]"), ("prompts", {}, "prompts"), ("colour", 1, "colour")],
)
def test_the_first_fault_is_named_with_its_place(front: Front, field: str, value: object, place: str) -> None:
    error = refused(front.generate(**{field: value}), 422)
    assert error["message"].startswith(f"{place}: ")
    assert error["param"] == field


def test_several_faults_are_reported_by_the_first_and_their_number(front: Front) -> None:
    error = refused(front.generate(prompts=["\x00", "a"], max_new_tokens=0, temperature=-1.0), 422)
    assert error["message"].endswith("(and 2 more)")


MANY = 170_000
"""Times six bytes: a body just below the limit of 1 MiB."""

READERS: dict[str, BodyReader[Any]] = {
    GENERATE: generate._generate_body,
    COMPARE: generate._compare_body,
    COMPLETE: openai._body,
}


def many(item: str) -> str:
    return "[" + ",".join([item] * MANY) + "]"


def completion(prompt: str, more: str = "") -> tuple[str, str, str | None]:
    return COMPLETE, f'{{"model": "tiny:eager", "prompt": {prompt}{more}}}', "prompt"


FLOODS: dict[str, tuple[str, str, str | None]] = {
    "numbers for prompts": (GENERATE, f'{{"prompts": {many("12345")}}}', "prompts"),
    "very many prompts": (GENERATE, f'{{"prompts": {many(chr(34) + "ab" + chr(34))}}}', "prompts"),
    "unknown fields": (GENERATE, "{" + ",".join(f'"{n}":1' for n in range(MANY // 2)) + "}", "0"),
    "a seed that is a list": (GENERATE, f'{{"prompts": ["a"], "seed": {many("[]")}}}', "seed"),
    "stop strings without end": (GENERATE, f'{{"prompts": ["a"], "stop": {many("1")}}}', "stop"),
    "truths for a prompt": completion(many("true")),
    "very many tokens": completion(many("1")),
    "lists of tokens behind a text": completion(f'["a", {many("[1]")[1:]}'),
    "an extension without end": (*completion('"a"', f', "logit_bias": {many("{}")}')[:2], "logit_bias"),
    "texts of a backslash": (GENERATE, f'{{"prompts": {many(chr(34) + chr(92) * 2 + chr(34))}}}', "prompts"),
    "one long list of tokens": completion(f"[[1{',1' * 3 * MANY}]]"),
    "nesting": (GENERATE, '{"prompts": ["a"], "seed": ' + "[" * 500_000, None),
}


@pytest.mark.parametrize(("path", "body", "param"), FLOODS.values(), ids=FLOODS.keys())
def test_a_flood_of_faults_is_refused_before_the_schema_sees_it(
    front: Front, monkeypatch: pytest.MonkeyPatch, path: str, body: str, param: str | None
) -> None:
    def never(values: Any) -> BaseModel:
        raise AssertionError(f"the schema was given {len(values)} fields")

    assert len(body) <= front.state.settings.max_body_bytes
    monkeypatch.setattr(READERS[path]._schema, "model_validate", never)
    answer = front.http.post(path, content=body, headers=JSON)
    assert answer.status_code == (400 if path == COMPLETE else 422), answer.text  # as OpenAI's clients expect
    assert answer.json()["error"]["param"] == param
    assert len(answer.content) < 1000


def test_what_is_long_and_no_fault_is_served(front: Front) -> None:
    assert front.generate(prompts=["word " * 200_000]).status_code == 200
    assert front.generate(stop=["\U0001f40d" * 256] * 4).status_code == 200
    ignored = {"model": "tiny:eager", "prompt": "a", "anything": [{}] * 100_000}
    assert front.http.post(COMPLETE, json=ignored).status_code == 200


MOST = 1000


@pytest.fixture(scope="module")
def bounded() -> Iterator[Front]:
    with running(prompt_bytes=MOST) as started:
        started.await_ready()
        yield started


@pytest.mark.slow
@pytest.mark.parametrize("text", ["x" * (MOST + 1), "é" * (MOST // 2 + 1), "x" * 1_000_000])
@pytest.mark.parametrize(
    ("path", "field"), [(GENERATE, "prompts"), (COMPARE, "prompts"), (COMPLETE, "prompt")]
)
def test_a_text_that_no_context_holds_is_refused_by_its_size_and_the_engine_never_sees_it(
    bounded: Front, path: str, field: str, text: str
) -> None:
    assert bounded.generate(prompts=[text[: MOST // len(text[0].encode())]]).status_code == 200
    before = int(bounded.command("!served").json()["outputs"][0]["text"])
    body = {field: ["short", text], **({"model": "tiny:eager"} if field == "prompt" else {})}
    answer = bounded.http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == (422 if field == "prompts" else 400)
    assert (error.get("code") or error["type"]) in ("prompt_too_long", "context_length_exceeded")
    assert error["message"] == (
        f"{field}: a prompt of {len(text.encode())} bytes is over the limit of {MOST} for a context of 64:"
        " shorten it"
    )
    assert int(bounded.command("!served").json()["outputs"][0]["text"]) == before + 1


# A plain body is decoded at once, by a struct that must not accept what the schema refuses


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65) | st.integers(-2, 101),
    st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([4.0, 100.0, 100.5]),
    st.text(max_size=3),
    st.lists(st.text("a\x00\x7f\x85\n\t\u2028", max_size=3) | st.integers(), max_size=6),
    st.sampled_from([["x" * 256], ["x" * 257], 1_000_000, 1_000_001, 2**63 - 1, 2**63]),
)
SOME_FIELDS = st.dictionaries(st.sampled_from([*GenerateBody.model_fields, "unknown"]), VALUES, max_size=3)


@given(SOME_FIELDS)
def test_what_is_decoded_at_once_is_valid_and_has_the_same_values(fields: dict[str, Any]) -> None:
    sent = {"prompts": ["a"], **fields}
    with suppress(msgspec.ValidationError):
        plain = msgspec.json.decode(json.dumps(sent), type=PlainGeneration)
        assert msgspec.structs.asdict(plain) == GenerateBody.model_validate(sent).model_dump()


def test_a_usual_body_is_decoded_at_once() -> None:
    used = {"temperature": 0.5, "top_k": 5, "seed": 2**63 - 1, "stop": ["\n"], "stream": True, "alone": True}
    for fields in ({}, used):
        sent = {"prompts": ["def mean(values):\n\treturn é"], "max_new_tokens": 8, **fields}
        plain = msgspec.json.decode(json.dumps(sent), type=PlainGeneration)
        assert msgspec.structs.asdict(plain) == GenerateBody.model_validate(sent).model_dump()


def test_a_number_without_a_fraction_is_an_integer_and_large_white_space_in_a_field_is_refused(
    front: Front,
) -> None:
    whole = front.http.post(GENERATE, json={**BODY, "max_new_tokens": 3.0})
    assert whole.json()["usage"]["completion_tokens"] == 3
    spaced = b'{"prompts": ["a"], "stop": [%s]}' % (b" " * 16_384)
    assert refused(front.http.post(GENERATE, content=spaced, headers=JSON), 422)["param"] == "stop"
