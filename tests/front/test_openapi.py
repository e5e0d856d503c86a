"""`/openapi.json` can be used by a generator of clients: references resolve, and errors are declared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import pytest

from service.front.app import create_app
from service.front.schemas.studies import STUDY_BODIES
from service.front.settings import Settings


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def references(node: object) -> Iterator[str]:
    """Every `$ref` in a JSON value."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from references(value)
    elif isinstance(node, list):
        for item in node:
            yield from references(item)


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert found
    for reference in found:
        assert reference.startswith("#/"), reference
        target = reduce(lambda node, key: node[key], reference.removeprefix("#/").split("/"), document)
        assert isinstance(target, dict)


def test_a_nested_model_of_a_body_stands_inline(document: dict[str, Any]) -> None:
    content = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]
    options = content["application/json"]["schema"]["properties"]["stream_options"]
    assert "include_usage" in options["anyOf"][0]["properties"]


ANY = {"400", "431", "500"}
V1 = {*ANY, "401", "403"}
BODY = {"408", "413", "415"}
GENERATION = {*V1, *BODY, "404", "409", "422", "429", "503", "504"}
STUDY = {*V1, "404", "409", "415", "422", "503", "504"}


@pytest.mark.parametrize(
    ("method", "path", "errors"),
    [
        ("post", "/v1/modes/{mode}/generate", GENERATION),
        ("post", "/v1/compare", GENERATION),
        ("post", "/v1/completions", GENERATION),
        ("get", "/v1/models", V1),
        ("get", "/v1/models/{model_id}", {*V1, "404"}),
        ("get", "/v1/modes", V1),
        ("post", "/v1/floors", {*V1, "415", "503"}),
        *(("post", f"/v1/studies/{name}", {*STUDY, *BODY, "429"}) for name in STUDY_BODIES),
        ("get", "/v1/studies", V1),
        ("get", "/v1/studies/{identity}", {*V1, "404"}),
        ("get", "/v1/studies/{identity}/files/{name}", {*V1, "404"}),
        ("get", "/v1/modes/{mode}/anatomy", {*V1, "404", "422"}),
        ("get", "/v1/probes", V1),
        ("post", "/v1/probes/{name}", STUDY),
        ("get", "/v1/advice", {*V1, "409", "422"}),
        ("get", "/v1/runs", V1),
        ("get", "/v1/runs/{name}/report", {*V1, "404"}),
        ("post", "/v1/runs/compare", {*V1, *BODY, "404", "409", "422", "429"}),
        ("get", "/v1/traces", V1),
        ("get", "/v1/traces/{identity}", {*V1, "404"}),
        ("get", "/health/live", {*ANY, "503"}),
        ("get", "/health/ready", {*ANY, "503"}),
        ("get", "/metrics", ANY),
    ],
)
def test_a_route_declares_the_errors_that_it_answers_in_our_shape(
    document: dict[str, Any], method: str, path: str, errors: set[str]
) -> None:
    declared = document["paths"][path][method]["responses"]
    for status in errors:
        schema = declared[status]["content"]["application/json"]["schema"]
        assert schema["$ref"].endswith("ErrorBody"), status


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_study_has_its_body_and_its_events_in_the_document(document: dict[str, Any], name: str) -> None:
    route = document["paths"][f"/v1/studies/{name}"]["post"]
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"].keys() == STUDY_BODIES[name].model_fields.keys()
    assert schema["additionalProperties"] is False
    assert {"application/json", "text/event-stream"} <= route["responses"]["200"]["content"].keys()
