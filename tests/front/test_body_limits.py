"""Counting by punctuation refuses nothing that fits, and large bodies are decoded one by one."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front.errors import BadRequest
from service.front.limits import LargeBodies
from service.front.routes.body import Limits

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
