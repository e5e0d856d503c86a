"""A body costs what may be served, not what was sent: it is counted before the schema sees it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from service.front.routes import generate, openai
from service.front.routes.body import BodyReader
from tests.front.test_api_bad_input import GENERATE, JSON, refused
from tests.support.serving import Front

MANY = 170_000
"""Times six bytes: a body just below the limit of 1 MiB."""

COMPLETE = "/v1/completions"
READERS: dict[str, BodyReader[Any]] = {
    GENERATE: generate._generate_body,
    "/v1/compare": generate._compare_body,
    COMPLETE: openai._body,
}


def many(item: str) -> str:
    return "[" + ",".join([item] * MANY) + "]"


FLOODS: dict[str, tuple[str, str, str | None]] = {
    "numbers for prompts": (GENERATE, f'{{"prompts": {many("12345")}}}', "prompts"),
    "lists for prompts": (GENERATE, f'{{"prompts": {many("[[]]")}}}', "prompts"),
    "objects for prompts": (GENERATE, f'{{"prompts": {many("{}")}}}', "prompts"),
    "very many prompts": (GENERATE, f'{{"prompts": {many(chr(34) + "ab" + chr(34))}}}', "prompts"),
    "numbers for prompts to compare": ("/v1/compare", f'{{"prompts": {many("1")}}}', "prompts"),
    "unknown fields": (
        GENERATE,
        "{" + ",".join(f'"{n}":1' for n in range(MANY // 2)) + "}",
        "0",
    ),
    "a seed that is a list": (GENERATE, f'{{"prompts": ["a"], "seed": {many("[]")}}}', "seed"),
    "stop strings without end": (GENERATE, f'{{"prompts": ["a"], "stop": {many("1")}}}', "stop"),
    "modes without end": ("/v1/compare", f'{{"prompts": ["a"], "modes": {many("1")}}}', "modes"),
    "truths for a prompt": (COMPLETE, f'{{"model": "tiny:eager", "prompt": {many("true")}}}', "prompt"),
    "very many texts": (COMPLETE, f'{{"model": "tiny:eager", "prompt": {many(chr(34) * 2)}}}', "prompt"),
    "very many tokens": (COMPLETE, f'{{"model": "tiny:eager", "prompt": {many("1")}}}', "prompt"),
    "very many lists of tokens": (COMPLETE, f'{{"model": "tiny:eager", "prompt": {many("[1]")}}}', "prompt"),
    "lists of tokens behind a text": (
        COMPLETE,
        f'{{"model": "tiny:eager", "prompt": ["a", {many("[1]")[1:]}}}',
        "prompt",
    ),
    "an extension without end": (
        COMPLETE,
        f'{{"model": "tiny:eager", "prompt": "a", "logit_bias": {many("{}")}}}',
        "logit_bias",
    ),
    "texts of a backslash": (GENERATE, f'{{"prompts": {many(chr(34) + chr(92) * 2 + chr(34))}}}', "prompts"),
    "as many tokens as fit": (
        COMPLETE,
        f'{{"model": "tiny:eager", "prompt": [1{",1" * 3 * MANY}]}}',
        "prompt",
    ),
    "one long list of tokens": (
        COMPLETE,
        f'{{"model": "tiny:eager", "prompt": [[1{",1" * 3 * MANY}]]}}',
        "prompt",
    ),
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


def test_an_ignored_field_without_end_is_ignored(front: Front) -> None:
    body = {"model": "tiny:eager", "prompt": "a", "anything": [{}] * 100_000}
    assert front.http.post(COMPLETE, content=json.dumps(body), headers=JSON).status_code == 200


def test_a_long_prompt_is_no_flood(front: Front) -> None:
    assert front.generate(prompts=["word " * 200_000]).status_code == 200


@pytest.mark.parametrize("wide", [lambda text: text, lambda text: json.loads(json.dumps(text))])
def test_the_longest_stop_strings_fit(front: Front, wide: Callable[[str], str]) -> None:
    assert front.generate(stop=[wide("\U0001f40d" * 256)] * 4).status_code == 200
