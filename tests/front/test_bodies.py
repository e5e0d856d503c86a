"""A body is refused by what it costs and by its types before the schema sees it, and never one that fits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from service.front.errors import BadRequest
from service.front.limits import LargeBodies
from service.front.routes import generate, openai
from service.front.routes.body import BodyReader, Limits
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


LIMITS = Limits(prompts=4, context=16)
TOGETHER = 5

texts = st.text(st.sampled_from('\\"a,[ é\u2028\n'), max_size=12) | st.text(max_size=12)


@given(prompts=st.lists(texts, max_size=LIMITS.prompts), escaped=st.booleans())
def test_texts_that_fit_are_never_refused_whatever_they_hold(prompts: list[str], escaped: bool) -> None:
    LIMITS.check_texts("prompts", json.dumps(prompts, ensure_ascii=escaped).encode("utf-8", "surrogatepass"))


@given(prompts=st.lists(texts, min_size=2 * LIMITS.prompts + 2, max_size=20))
def test_twice_as_many_texts_as_fit_are_always_refused(prompts: list[str]) -> None:
    with pytest.raises(BadRequest, match="at least"):
        LIMITS.check_texts("prompts", json.dumps(prompts).encode("utf-8", "surrogatepass"))


@given(prompts=st.lists(st.lists(st.integers(0, 9), max_size=LIMITS.context), max_size=LIMITS.prompts))
def test_lists_of_tokens_that_fit_are_never_refused(prompts: list[list[int]]) -> None:
    raw = json.dumps(prompts).encode()
    LIMITS.check_lists("prompt", raw)
    LIMITS.check_numbers("prompt", raw, lists=LIMITS.prompts)
    for one in prompts:
        LIMITS.check_numbers("prompt", json.dumps(one).encode(), lists=1)


@pytest.mark.parametrize(
    ("prompts", "lists"), [([1] * 18, 1), ([[1] * 20] * 4, LIMITS.prompts), ([[1] * 90], LIMITS.prompts)]
)
def test_more_tokens_than_fit_are_refused_with_the_context(prompts: list[object], lists: int) -> None:
    with pytest.raises(BadRequest, match="over the context of 16") as refused:
        LIMITS.check_numbers("prompt", json.dumps(prompts).encode(), lists)
    assert refused.value.type == "prompt_too_long"


def test_no_context_is_no_limit() -> None:
    Limits(prompts=1, context=None).check_numbers("prompt", b"[1" + b",1" * 1000 + b"]", lists=1)


def test_of_large_bodies_that_are_complete_at_once_each_has_a_pass_of_the_loop() -> None:
    async def passes() -> list[int]:
        bodies, seen, count = LargeBodies(max_queue=1), list[int](), 0
        loop = asyncio.get_running_loop()

        def counted() -> None:
            nonlocal count
            count += 1
            if len(seen) < TOGETHER:
                loop.call_soon(counted)

        async def decode() -> None:
            await bodies.turn()
            seen.append(count)

        counted()
        await asyncio.gather(*(decode() for _ in range(TOGETHER)))
        return seen

    seen = asyncio.run(passes())
    assert len(set(seen)) == TOGETHER
