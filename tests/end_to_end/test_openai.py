"""The `openai` package and the `generate` verb against the real service."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types import Completion
from typer.testing import CliRunner

from launchbound import app
from models.checkpoint import TINY_FOLDER
from models.tokenizer import Tokenizer
from tests.support.whole_service import WholeService

MODEL = "tiny:inference_mode"
PROMPT = "def __init__("


@pytest.fixture(scope="module")
def url(service: WholeService) -> str:
    return service.url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60.0) as opened:
        yield opened


def complete(client: OpenAI, prompt: Any = PROMPT, **fields: Any) -> Completion:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 12, "temperature": 0, **fields}
    answer = client.completions.create(**body)
    assert isinstance(answer, Completion)
    return answer


def texts(answer: Completion) -> list[str]:
    return [choice.text for choice in answer.choices]


def generated(url: str, **fields: Any) -> dict[str, Any]:
    body = {"prompts": [PROMPT], "max_new_tokens": 12, **fields}
    answer: dict[str, Any] = httpx.post(
        f"{url}/v1/modes/inference_mode/generate", json=body, timeout=60.0, trust_env=False
    ).json()
    return answer


def test_a_completion_is_what_generate_answers_in_the_same_mode(url: str, client: OpenAI) -> None:
    ours, answer = generated(url), complete(client)
    assert texts(answer) == [ours["outputs"][0]["text"]]
    assert answer.usage is not None
    assert answer.usage.to_dict() == ours["usage"]


def test_token_ids_and_lists_complete_as_their_text_does(client: OpenAI) -> None:
    tokens = Tokenizer.load(TINY_FOLDER).encode(PROMPT)
    alone = texts(complete(client))
    assert texts(complete(client, tokens)) == alone
    assert texts(complete(client, [tokens, tokens[:1]]))[:1] == alone
    assert texts(complete(client, ["import os", PROMPT]))[1:] == alone


def test_a_stream_joined_is_the_plain_text_with_its_usage(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=12,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    plain = complete(client)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == plain.choices[0].text
    assert len(chunks) > 3
    assert chunks[-1].usage == plain.usage


def test_a_seed_repeats_its_n_different_samples(client: OpenAI) -> None:
    first, again = (complete(client, n=2, temperature=1.0, top_p=0.95, seed=5) for _ in range(2))
    assert texts(first) == texts(again)
    assert len(set(texts(first))) == 2
    assert first.usage is not None
    assert first.usage.prompt_tokens == len(Tokenizer.load(TINY_FOLDER).encode(PROMPT))


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    free = complete(client).choices[0].text
    stop = free[2:4]
    stopped = complete(client, stop=stop).choices[0]
    assert (stopped.text, stopped.finish_reason) == (free[: free.index(stop)], "stop")


def test_a_token_that_the_model_does_not_have_is_refused_by_its_name_here(url: str) -> None:
    answer = httpx.post(f"{url}/v1/completions", json={"model": MODEL, "prompt": [999_999]}, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "prompt"
    assert "4095" in answer.json()["error"]["message"]


def test_the_verb_starts_a_service_of_its_own_and_ends_it(
    monkeypatch: pytest.MonkeyPatch, shared_code: dict[str, str]
) -> None:
    for name, value in {**shared_code, "LAUNCHBOUND_BATCH_SIZES": "1"}.items():
        monkeypatch.setenv(name, value)
    shown = CliRunner().invoke(app, ["generate", "import o", "--mode=no_grad", "--max-new-tokens=4"])
    assert shown.exit_code == 0, shown.output
    assert "tiny in no_grad on cpu" in shown.stdout
