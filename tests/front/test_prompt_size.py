"""A text that no context holds is refused by its size, and the engine never sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.front.test_api_bad_input import refused
from tests.support.serving import Front, running

pytestmark = pytest.mark.slow

MOST = 1000


@pytest.fixture(scope="module")
def bounded() -> Iterator[Front]:
    with running(prompt_bytes=MOST) as started:
        started.await_ready()
        yield started


@pytest.mark.parametrize("text", ["x" * (MOST + 1), "é" * (MOST // 2 + 1), "x" * 1_000_000])
@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/modes/eager/generate", "prompts"), ("/v1/compare", "prompts"), ("/v1/completions", "prompt")],
)
def test_a_text_over_the_limit_is_a_422_that_the_engine_never_sees(
    bounded: Front, path: str, field: str, text: str
) -> None:
    before = served(bounded)
    body = {field: ["short", text], **({"model": "tiny:eager"} if field == "prompt" else {})}
    answer = bounded.http.post(path, json=body)
    error = answer.json()["error"]
    assert answer.status_code == (422 if field == "prompts" else 400)  # as OpenAI's clients expect
    assert (error.get("code") or error["type"]) in ("prompt_too_long", "context_length_exceeded")
    assert f"{field}: a prompt of {len(text.encode())} bytes is over the limit of {MOST}" in error["message"]
    assert served(bounded) == before + 1  # the request that asked


@pytest.mark.parametrize("text", ["x" * MOST, "é" * (MOST // 2)])
def test_a_text_at_the_limit_is_served(bounded: Front, text: str) -> None:
    assert bounded.generate(prompts=[text]).status_code == 200


def test_the_refusal_names_the_context_and_the_remedy(bounded: Front) -> None:
    error = refused(bounded.generate(prompts=["x" * (MOST + 1)]), 422)
    assert (error["type"], error["param"]) == ("prompt_too_long", "prompts")
    assert error["message"].endswith("for a context of 64: shorten it")


def served(front: Front) -> int:
    """How many jobs the engine has had, this question included."""
    return int(front.command("!served").json()["outputs"][0]["text"])
