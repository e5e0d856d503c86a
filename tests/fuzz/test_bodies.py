"""Whatever body a route is sent, its answer is declared and true to its schema; what is valid is served."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.service import EVENTS, GENERATE, LARGEST_BATCH, MODES, VOCABULARY, Fuzzed, bounded, events

Fields = dict[str, st.SearchStrategy[Any]]

CONTROL_OR_SURROGATE = ("Cc", "Cs")
text = st.text(st.characters(exclude_categories=CONTROL_OR_SURROGATE), min_size=1, max_size=20)
texts = st.lists(text, min_size=1, max_size=LARGEST_BATCH)
tokens = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6)
few = st.integers(1, 3)
seeds = st.integers(0, 2**63 - 1)
temperatures = st.sampled_from([0, 0.0, 1, 100]) | st.floats(0, 100)

OF_ALL: Fields = {
    "temperature": temperatures,
    "seed": st.none() | seeds,
    "stop": st.lists(st.text(min_size=1, max_size=5), max_size=4),
    "ignore_eos": st.booleans(),
}
GENERATION: Fields = {**OF_ALL, "top_k": st.none() | st.integers(1, 1_000_000)}
COMPLETION: Fields = {
    **OF_ALL,
    "top_k": st.none() | st.integers(-1, 1_000_000),
    "top_p": st.none() | st.floats(0, 1),
    "stop": st.none() | st.text(min_size=1, max_size=5) | OF_ALL["stop"],
    "stream": st.booleans(),
    "stream_options": st.none() | st.fixed_dictionaries({}, optional={"include_usage": st.booleans()}),
    "echo": st.sampled_from([None, False]),
    "logit_bias": st.sampled_from([None, {}]),
    "user": st.text(max_size=5),
}

generations = st.fixed_dictionaries(
    {"prompts": texts, "max_new_tokens": few}, optional={**GENERATION, "stream": st.booleans()}
)
comparisons = st.fixed_dictionaries(
    {"prompts": texts, "max_new_tokens": few, "repeats": st.integers(1, 2)},
    optional={**GENERATION, "modes": st.lists(st.sampled_from(MODES), min_size=1, unique=True)},
)
completions = st.fixed_dictionaries(
    {
        "model": st.sampled_from([f"tiny:{mode}" for mode in MODES]),
        "prompt": text | texts | tokens | st.lists(tokens, min_size=1, max_size=LARGEST_BATCH),
        "max_tokens": few,
    },
    optional=COMPLETION,
)
unrunnable_studies = st.fixed_dictionaries(
    {"mode": st.sampled_from(MODES), "batch_size": st.integers(max_value=0) | st.integers(LARGEST_BATCH + 1)},
    optional={"phase": st.sampled_from(["decode", "prefill"])},
)
"""Of a batch size that no bucket holds: one that ran would pause the engine."""

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=30)
    | st.sampled_from(["eager", "tiny:eager", "decode", "", "\x00", "\ud800", "é" * 128])
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
)


NAMES = sorted({*COMPLETION, "alone", "best_of", "modes", "n", "profile", "prompts", "suffix"})


@st.composite
def spoilt(draw: st.DrawFn, bodies: st.SearchStrategy[dict[str, Any]]) -> Any:
    """A valid body with a few fields replaced, added or left out; now and then any JSON instead."""
    if draw(st.integers(0, 9)) == 0:
        return draw(anything)
    body = draw(bodies)
    names = st.sampled_from([*body, *NAMES]) | st.text(max_size=5)
    for name in draw(st.lists(names, min_size=1, max_size=3, unique=True)):
        if name in body and draw(st.booleans()):
            del body[name]
        else:
            body[name] = draw(anything)
    return body


COMPARE, COMPLETE, STUDY = "/v1/compare", "/v1/completions", "/v1/studies/operators"
JSON = {"Content-Type": "application/json"}
PARTS = ("queue_seconds", "dispatch_seconds", "kernel_seconds", "other_seconds")


def post(fuzzed: Fuzzed, path: str, body: object) -> httpx.Response:
    return fuzzed.http.post(path, content=json.dumps(body), headers=JSON)


def check_result(fuzzed: Fuzzed, answer: dict[str, Any], body: dict[str, Any]) -> None:
    """A generation has an output per prompt, no more tokens than it may, and parts that add up."""
    fuzzed.declared.conforms_to("GenerateAnswer", answer)
    assert len(answer["outputs"]) == len(body["prompts"])
    assert all(output["completion_tokens"] <= body["max_new_tokens"] for output in answer["outputs"])
    timings = answer["timings"]
    assert all(timings[part] >= 0 for part in PARTS)
    assert sum(timings[part] for part in PARTS) == pytest.approx(timings["total_seconds"])


@bounded()
@given(mode=st.sampled_from(MODES), body=generations)
def test_a_valid_generation_is_served_at_once_or_as_a_stream(
    fuzzed: Fuzzed, mode: str, body: dict[str, Any]
) -> None:
    answer = post(fuzzed, f"/v1/modes/{mode}/generate", body)
    assert answer.status_code == 200, answer.text
    found = fuzzed.check(answer, GENERATE)
    if body.get("stream"):
        assert answer.headers["Content-Type"].startswith(EVENTS)
        *tokens, (name, found) = events(answer.content)
        assert name == "result"
        for index, output in enumerate(found["outputs"]):
            pieces = [token["text"] for kind, token in tokens if kind == "token" and token["index"] == index]
            assert "".join(pieces) == output["text"]
    check_result(fuzzed, found, body)


@bounded(40)
@given(body=comparisons)
def test_a_valid_comparison_has_a_result_for_each_of_its_modes(fuzzed: Fuzzed, body: dict[str, Any]) -> None:
    answer = post(fuzzed, COMPARE, body)
    assert answer.status_code == 200, answer.text
    found = fuzzed.check(answer, COMPARE)
    assert [result["mode"] for result in found["results"]] == body.get("modes", list(MODES))
    assert found["batch_size"] == len(body["prompts"])


@bounded()
@given(body=completions)
def test_a_valid_completion_is_served_at_once_or_as_a_stream(fuzzed: Fuzzed, body: dict[str, Any]) -> None:
    prompt = body["prompt"]
    batch = len(prompt) if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    answer = post(fuzzed, COMPLETE, body)
    assert answer.status_code == 200, answer.text
    found = fuzzed.check(answer, COMPLETE)
    if not body.get("stream"):
        assert [choice["index"] for choice in found["choices"]] == list(range(batch))
        return
    *chunks, (_, end) = events(answer.content)
    assert end == "[DONE]"
    for _, chunk in chunks:
        fuzzed.declared.conforms_to("CompletionAnswer", chunk)
    choices = [choice for _, chunk in chunks for choice in chunk["choices"]]
    assert sorted(one["index"] for one in choices if one["finish_reason"]) == list(range(batch))
    assert "launchbound" in chunks[-1][1]


SPOILT = {
    "/v1/modes/eager/generate": (GENERATE, generations),
    COMPARE: (COMPARE, comparisons),
    COMPLETE: (COMPLETE, completions),
    STUDY: (STUDY, unrunnable_studies),
}


@pytest.mark.parametrize("path", SPOILT)
@bounded()
@given(data=st.data())
def test_a_body_with_faults_is_answered_as_declared(fuzzed: Fuzzed, path: str, data: st.DataObject) -> None:
    template, valid = SPOILT[path]
    # Not a number of tokens or rounds that would run for long, and no batch size that a study could run.
    body = data.draw(spoilt(valid).filter(lambda body: is_quick(body, path)))
    fuzzed.check(post(fuzzed, path, body), template)


def is_quick(body: Any, path: str) -> bool:
    """Whether a body, where it is served at all, takes few steps; none of a study is."""
    if not isinstance(body, dict):
        return True
    if path == STUDY:
        return "batch_size" in body and body["batch_size"] not in range(1, LARGEST_BATCH + 1)
    if path == COMPARE and "repeats" not in body:
        return False
    counts = [body.get(name, 1) for name in ("max_new_tokens", "max_tokens", "repeats")]
    return all(type(count) is not int or count <= 3 or count > 2**20 for count in counts)


@bounded()
@given(
    path=st.sampled_from([COMPARE, COMPLETE, STUDY, "/v1/probes/nothing"]),
    body=st.binary(max_size=300),
    kind=st.sampled_from(["application/json", "application/json; charset=utf-8", "text/plain", ""]),
)
def test_a_body_of_any_bytes_is_refused_as_declared(
    fuzzed: Fuzzed, path: str, body: bytes, kind: str
) -> None:
    answer = fuzzed.http.post(path, content=body, headers={"Content-Type": kind})
    fuzzed.check(answer, "/v1/probes/{name}" if "probes" in path else path)
    assert answer.status_code in (404, 415, 400 if path == COMPLETE else 422)


@bounded()
@given(name=st.text(max_size=100).map(lambda text: f"-{text}"), body=anything)
def test_a_probe_that_is_none_is_a_404_whatever_it_is_sent(fuzzed: Fuzzed, name: str, body: object) -> None:
    answer = post(fuzzed, f"/v1/probes/{quoted(name)}", body)
    assert answer.status_code == 404
    fuzzed.check(answer, "/v1/probes/{name}")


@bounded()
@given(
    path=st.sampled_from(["/v1/traces/", "/v1/models/", "/v1/studies/", "/v1/modes/", "/docs/", "/", "/v1/"])
    | st.just("/v1/advice?batch_size=")
    | st.just("/v1/modes/eager/anatomy?phase="),
    rest=st.text(max_size=200),
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS"]),
)
def test_any_address_is_answered_in_the_one_shape(fuzzed: Fuzzed, path: str, rest: str, method: str) -> None:
    answer = fuzzed.http.request(method, path + quoted(rest))
    assert answer.status_code in (200, 404, 405, 409, 415, 422), answer.text
    if answer.status_code != 200:
        fuzzed.declared.conforms_to("ErrorBody", answer.json())
    if answer.status_code == 405:
        assert answer.headers["Allow"]


def quoted(text: str) -> str:
    """Every byte of a text escaped, so that no client changes it; a lone surrogate is no UTF-8 then."""
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))
