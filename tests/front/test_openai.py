"""The `openai` package against the front: completions, streams, usage, errors as the package raises them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from openai.types import Completion

from service.front.settings import model_name
from tests.front.test_generate import TIMINGS, header_milliseconds
from tests.support.fake_engine import REVISION
from tests.support.serving import JSON, Front, running

KEY = "k3y"
MODEL = "tiny:eager"


def connect(front: Front, key: str = KEY) -> OpenAI:
    return OpenAI(base_url=f"{front.url}/v1", api_key=key, max_retries=0, timeout=20.0)


@pytest.fixture(scope="module")
def client(front: Front) -> Iterator[OpenAI]:
    with connect(front) as opened:
        yield opened


def complete(client: OpenAI, prompt: Any = "def mean(values):", **fields: Any) -> Completion:
    answer = client.completions.create(**{"model": MODEL, "prompt": prompt, "max_tokens": 4, **fields})
    assert isinstance(answer, Completion)
    return answer


def job_of(client: OpenAI, **fields: Any) -> dict[str, Any]:
    job: dict[str, Any] = json.loads(complete(client, "!job", **fields).choices[0].text)
    return job


def chunks(client: OpenAI, **fields: Any) -> list[Completion]:
    stream = client.completions.create(
        **{"model": MODEL, "prompt": "a", "max_tokens": 3, "stream": True, **fields}
    )
    return list(stream)


def test_every_mode_is_a_model_in_the_order_of_the_ladder_with_its_context(
    front: Front, client: OpenAI
) -> None:
    ids = [model.id for model in client.models.list()]
    assert ids == [f"tiny:{mode}" for mode in [*front.state.settings.ladder, "auto"]]
    model = front.http.get("/v1/models").json()["data"][0]
    assert model.keys() == {"id", "object", "created", "owned_by", "max_model_len", "revision"}
    assert (model["object"], model["max_model_len"], model["revision"]) == ("model", 64, REVISION)


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("tiny", "tiny"),
        ("hf:/data/models/qwen-0.5b/", "qwen-0.5b"),
        ("hf:Qwen/Qwen2.5-0.5B", "Qwen2.5-0.5B"),
        ("hf:Qwen/Qwen2.5-0.5B@refs/pr/3", "Qwen2.5-0.5B"),
        ("hf:/data/a@b", "a-b"),
        ("hf:.", "model"),
    ],
)
def test_a_models_name_in_ids_is_the_last_part_of_its_setting(setting: str, name: str) -> None:
    assert model_name(setting) == name


def test_a_completion_has_openais_shape(front: Front, client: OpenAI) -> None:
    answer = complete(client)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.model) == ("text_completion", MODEL)
    assert answer.created > 1_600_000_000
    assert [choice.index for choice in answer.choices] == [0]
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason, choice.logprobs) == ("w0 w1 w2 w3", "length", None)
    raw = front.http.post("/v1/completions", json={"model": MODEL, "prompt": "a"}).json()
    assert raw.keys() == {"id", "object", "created", "model", "choices", "usage", "launchbound"}
    assert raw["choices"][0].keys() == {"index", "text", "logprobs", "finish_reason"}


def test_what_is_left_out_or_null_has_openais_defaults(front: Front, client: OpenAI) -> None:
    bare = {"model": MODEL, "prompt": "!job"}
    names = "max_tokens temperature top_p n stop seed stream stream_options top_k ignore_eos"
    nulls = dict.fromkeys(f"{names} echo suffix logprobs best_of logit_bias".split())
    for body in (bare, {**bare, **nulls}):
        answer = front.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        job = json.loads(answer.json()["choices"][0]["text"])
        expected = {
            "max_new_tokens": 16, "temperature": 1.0, "top_k": None, "seed": None, "stop": [],
            "ignore_eos": False, "stream": False, "profile": False,
        }  # fmt: skip
        assert {name: job[name] for name in expected} == expected
        assert job["top_p"] in (None, 1.0)


def test_every_served_field_reaches_the_engine(client: OpenAI) -> None:
    same = {"temperature": 0.5, "top_p": 0.9, "seed": -7, "stop": ["x", "y"]}
    more = {"top_k": 5, "ignore_eos": True}
    job = job_of(client, **same, max_tokens=9, extra_body=more)
    expected = {**same, **more, "max_new_tokens": 9}
    assert {name: job[name] for name in expected} == expected
    assert job_of(client, stop="z")["stop"] == ["z"]
    assert job_of(client, extra_body={"top_k": -1})["top_k"] is None


def test_a_value_without_effect_an_unknown_field_and_control_characters_are_accepted(client: OpenAI) -> None:
    plain = {"n": 1, "best_of": 1, "echo": False, "suffix": "", "presence_penalty": 0, "logit_bias": {}}
    more = {"repetition_penalty": 1.0, "min_p": 0, "stop_token_ids": [], "unheard_of": {"a": 1}}
    answer = complete(client, "a\x00\x1bb", **plain, frequency_penalty=0.0, user="somebody", extra_body=more)
    assert answer.choices[0].text == "w0 w1 w2 w3"


def test_our_timings_are_in_body_and_header(client: OpenAI) -> None:
    raw = client.completions.with_raw_response.create(model=MODEL, prompt="a", max_tokens=4)
    extension = raw.parse().to_dict()["launchbound"]
    assert isinstance(extension, dict)
    assert extension.keys() == {"mode", "device", "batch_size", "batch_bucket", "timings"}
    timings = extension["timings"]
    assert timings.keys() >= TIMINGS
    header = header_milliseconds(raw.headers["server-timing"])
    assert header["total"] == pytest.approx(timings["total_seconds"] * 1000, abs=1e-4)


def test_usage_comes_in_one_more_chunk_without_choices_only_where_requested(client: OpenAI) -> None:
    got = chunks(client, prompt="two words", stream_options={"include_usage": True})
    assert [chunk.usage for chunk in got[:-1]] == [None] * (len(got) - 1)
    assert got[-1].choices == []
    assert got[-1].usage is not None
    assert got[-1].usage.to_dict() == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert all(chunk.choices and "usage" not in chunk.to_dict() for chunk in chunks(client))


@pytest.mark.parametrize("options", [None, {"include_usage": True, "continuous_usage_stats": True}])
def test_a_streams_timings_come_in_its_last_chunk(client: OpenAI, options: dict[str, bool] | None) -> None:
    got = [chunk.to_dict() for chunk in chunks(client, stream_options=options)]
    assert all("launchbound" not in chunk for chunk in got[:-1])
    assert got[-1]["launchbound"]["timings"].keys() >= TIMINGS  # type: ignore[index]


def test_a_failure_in_mid_stream_is_an_error_that_the_client_raises(own_front: Front) -> None:
    with connect(own_front) as client, pytest.raises(openai.APIError) as failed:
        chunks(client, prompt="!die-after-tokens")
    assert failed.value.code == "engine_lost"


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "echo": ({"echo": True}, "echo"),
    "logprobs": ({"logprobs": 0}, "logprobs"),
    "presence_penalty": ({"presence_penalty": 0.5}, "presence_penalty"),
    "no prompt": ({"prompt": ""}, "prompt"),
    "no tokens": ({"prompt": [[]]}, "prompt"),
    "a token beyond 31 bits": ({"prompt": [[2**31]]}, "prompt"),
    "too many prompts": ({"prompt": ["a"] * 5}, "prompt"),
    "too many completions": ({"prompt": ["a", "b"], "n": 3}, "n"),
    "new tokens over the context": ({"max_tokens": 64}, "max_tokens"),
    "no model": ({"model": None}, "model"),
}


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error.keys() == {"type", "message", "param", "code"}
    return error


@pytest.mark.parametrize(("fields", "param"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_served_exactly_is_a_400_that_names_the_field(
    front: Front, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 4, **fields}
    error = error_of(front.http.post("/v1/completions", json=body), 400)
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert error["message"].startswith(param)
    assert "Value error" not in error["message"]


def test_the_client_raises_its_own_exceptions_with_our_messages(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as unprocessable:
        complete(client, echo=True)
    assert unprocessable.value.param == "echo"
    with pytest.raises(openai.NotFoundError) as unknown:
        complete(client, model="tiny")
    assert unknown.value.code == "model_not_found"
    assert "tiny:compiled" in str(unknown.value)
    with pytest.raises(openai.BadRequestError) as long:
        complete(client, "!problem prompt_too_long")
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.APIStatusError) as full:
        complete(client, "!oom")
    assert full.value.status_code == 503
    assert int(full.value.response.headers["retry-after"]) > 0
    with pytest.raises(openai.NotFoundError, match="no chat here"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hello"}])


def test_a_full_queue_is_a_rate_limit_error_with_a_time_to_wait(own_front: Front) -> None:
    own_front.state.client.max_queue = 1
    with connect(own_front) as client:
        holding = client.completions.create(model=MODEL, prompt="!hold", stream=True)
        next(holding)
        with pytest.raises(openai.RateLimitError) as limited:
            complete(client)
        assert limited.value.code == "rate_limit_exceeded"
        assert int(limited.value.response.headers["retry-after"]) > 0
        holding.close()


def test_a_wrong_key_is_an_authentication_error_and_the_right_one_is_served() -> None:
    with running({"api_key": KEY}) as front:
        front.await_ready()
        with connect(front, "wrong") as client, pytest.raises(openai.AuthenticationError) as wrong:
            complete(client)
        assert wrong.value.code == "invalid_api_key"
        with connect(front) as client:
            assert complete(client).choices[0].finish_reason == "length"


def test_a_wrong_method_and_a_broken_body_have_the_shape_too(front: Front) -> None:
    assert error_of(front.http.get("/v1/completions"), 405)["code"] == "method_not_allowed"
    assert (
        error_of(front.http.post("/v1/completions", content=b"{", headers=JSON), 400)["code"]
        == "invalid_json"
    )
