"""`/openapi.json` can be used by a generator of clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from service.front.app import create_app
from service.front.routes.pages import DESCRIPTIONS, EXAMPLES_FILE, describe
from service.front.schemas import STUDY_BODIES
from service.front.settings import Settings
from service.study_names import OF_MODULES


def described(model: str) -> dict[str, Any]:
    settings = Settings(model=model, modes=["eager", "compiled"], batch_sizes=[1, 8])
    return describe(create_app(settings), settings)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return described("tiny")


@pytest.fixture(scope="module")
def of_module() -> dict[str, Any]:
    """The document of a service that serves a module."""
    return described("ranker.py:build")


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for methods in document["paths"].values() for one in methods.values()]


def fields(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Owner, name and schema of every parameter and of every field of a body or an answer."""
    for operation in operations(document):
        yield from ((one["in"], one["name"], one) for one in operation.get("parameters", ()))
        content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for name, schema in content.get("schema", {}).get("properties", {}).items():
            yield "body", name, schema
    for owner, schema in document["components"]["schemas"].items():
        yield from ((owner, name, one) for name, one in schema.get("properties", {}).items())


def test_every_field_and_parameter_is_described_and_no_description_is_left_over(
    document: dict[str, Any], of_module: dict[str, Any]
) -> None:
    found = [*fields(document), *fields(of_module)]
    assert [f"{owner}.{name}" for owner, name, schema in found if not schema.get("description")] == []
    known = {name for _, name, _ in found} | {f"{owner}.{name}" for owner, name, _ in found}
    assert DESCRIPTIONS.keys() <= known


OF_ALL = {"400", "408", "431", "500", "503"}
OF_V1 = {"401", "403"}
OF_BODIES = {"413", "415", "422"}
MORE = {
    "/v1/modes/{mode}/generate": {"404", "409", "429", "504"},
    "/v1/modes/{mode}/forward": {"404", "409", "429", "504"},
    "/v1/compare": {"404", "409", "429", "504"},
    "/v1/studies/tape": {"404", "409", "429", "504"},
    "/v1/probes/{name}": {"404", "409", "415", "422", "504"},
    "/v1/modes/{mode}/anatomy": {"404", "422"},
    "/v1/advice": {"409", "422"},
    "/v1/runs/{name}/report": {"404"},
    "/v1/studies/{identity}/files/{name}": {"404"},
    "/v1/traces/{identity}": {"404"},
}


def test_every_route_declares_the_errors_that_it_answers_in_our_shape(
    document: dict[str, Any], of_module: dict[str, Any]
) -> None:
    assert MORE.keys() < {*document["paths"], *of_module["paths"]}
    for path, methods in [*document["paths"].items(), *of_module["paths"].items()]:
        for operation in methods.values():
            errors = OF_ALL | MORE.get(path, set()) | (OF_V1 if path.startswith("/v1") else set())
            if "requestBody" in operation:
                errors |= OF_BODIES - ({"422"} if path == "/v1/completions" else set())
            for status in errors:
                schema = operation["responses"][status]["content"]["application/json"]["schema"]
                assert schema["$ref"].endswith("ErrorBody"), (path, status)


@pytest.mark.parametrize("name", STUDY_BODIES)
def test_a_study_has_its_body_and_its_events_in_the_document(document: dict[str, Any], name: str) -> None:
    route = document["paths"][f"/v1/studies/{name}"]["post"]
    schema = route["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"].keys() == STUDY_BODIES[name].model_fields.keys()
    assert schema["additionalProperties"] is False
    assert {"application/json", "text/event-stream"} <= route["responses"]["200"]["content"].keys()


def test_the_document_of_a_module_has_its_studies_alone(of_module: dict[str, Any]) -> None:
    paths = of_module["paths"]
    studies = {path.removeprefix("/v1/studies/") for path in paths if path.startswith("/v1/studies/")}
    assert studies == {*OF_MODULES, "{identity}", "{identity}/files/{name}"} - {"probes"}
    assert {"/v1/probes", "/v1/probes/{name}"} <= paths.keys()
    body = paths["/v1/studies/timeline"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert (body["properties"]["phase"]["enum"], body["properties"]["phase"]["default"]) == (
        ["forward"], "forward",
    )  # fmt: skip
    assert [example["phase"] for example in body["examples"]] == ["forward"]
    assert body["properties"]["batch_size"]["enum"] == [1, 8]


def test_no_route_declares_a_422_in_the_frameworks_shape_or_one_that_cannot_be(
    document: dict[str, Any],
) -> None:
    assert not [name for name in document["components"]["schemas"] if "ValidationError" in name]
    assert "422" not in document["paths"]["/v1/traces/{identity}"]["get"]["responses"]


def test_what_this_instance_was_started_with_is_in_its_schemas(document: dict[str, Any]) -> None:
    paths = document["paths"]
    (mode,) = paths["/v1/modes/{mode}/generate"]["post"]["parameters"]
    assert mode["schema"]["enum"] == ["eager", "compiled"]
    comparison = paths["/v1/compare"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert comparison["properties"]["prompts"]["maxItems"] == 8
    modes = comparison["properties"]["modes"]["anyOf"][0]
    assert (modes["items"]["enum"], modes["uniqueItems"]) == (["eager", "compiled"], True)
    completion = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert completion["properties"]["model"]["enum"] == ["tiny:eager", "tiny:compiled", "tiny:auto"]
    text, texts, tokens, lists = completion["properties"]["prompt"]["anyOf"]
    assert (texts["maxItems"], lists["maxItems"]) == (8, 8)
    assert "maxItems" not in {**text, **tokens}
    (size,) = paths["/v1/advice"]["get"]["parameters"]
    assert (size["schema"]["minimum"], size["schema"]["maximum"]) == (1, 8)


def shown(document: dict[str, Any], kind: str) -> Iterator[tuple[str, dict[str, Any], object]]:
    """Operation id, schema and example of every body (`requestBody`) or successful answer (`responses`)."""
    for operation in operations(document):
        found = operation.get(kind, {})
        parts = [part for status, part in found.items() if status.startswith("2")] or [found]
        for form in (form for part in parts for form in part.get("content", {}).values()):
            schema = form.get("schema", {})
            of_answer = [one["value"] for one in form.get("examples", {}).values()]
            for example in schema.get("examples", []) if kind == "requestBody" else of_answer or [None]:
                yield operation["operationId"], schema, example


def ids(document: dict[str, Any]) -> set[str]:
    return {one["operationId"] for one in operations(document)}


def test_the_operations_are_those_whose_answers_are_recorded(
    document: dict[str, Any], of_module: dict[str, Any]
) -> None:
    recorded: list[str] = list(json.loads(EXAMPLES_FILE.read_text()))
    assert ids(document) == {one for one in recorded if not one.startswith("forward/")}
    assert ids(of_module) <= {one.removeprefix("forward/") for one in recorded}
    for one in (document, of_module):
        used = {tag for operation in operations(one) for tag in operation["tags"]}
        assert used == {tag["name"] for tag in one["tags"]}


def test_a_service_describes_the_routes_of_what_it_serves(
    document: dict[str, Any], of_module: dict[str, Any]
) -> None:
    of_both = {
        "compare",
        "modes",
        "advice",
        "traces",
        "runs",
        "live",
        "ready",
        "metrics",
        "run_operators",
        "probe",
    }
    assert of_both <= ids(document) & ids(of_module)
    assert {"forward", "forward_auto"} == ids(of_module) - ids(document)
    assert {"generate", "generate_auto", "completions", "models", "run_tape"} <= ids(document) - ids(
        of_module
    )
    forms = ("batch_size", "inputs", "safetensors")
    body = of_module["paths"]["/v1/modes/{mode}/forward"]["post"]["requestBody"]["content"]
    schema = body["application/json"]["schema"]
    assert schema["properties"]["batch_size"]["enum"] == [1, 8]
    assert not [name for name in forms if "default" in schema["properties"][name]]
    for one, phases in ((document, ["prefill", "decode"]), (of_module, ["forward"])):
        splits = one["components"]["schemas"]["SplitBody"]["properties"]
        assert splits["phase"]["enum"] == phases


@pytest.mark.parametrize("kind", ["requestBody", "responses"])
@pytest.mark.parametrize("fixture", ["document", "of_module"])
def test_every_example_is_one_that_its_schema_takes(
    request: pytest.FixtureRequest, fixture: str, kind: str
) -> None:
    document: dict[str, Any] = request.getfixturevalue(fixture)
    examples = list(shown(document, kind))
    assert len(examples) > (10 if fixture == "document" else 2)
    for operation, schema, example in examples:
        assert example, operation
        whole = {**schema, "components": document["components"]}
        assert not list(Draft202012Validator(whole).iter_errors(example)), operation


def test_the_times_of_the_example_of_a_module_add_up(of_module: dict[str, Any]) -> None:
    answer: Any = next(one for name, _, one in shown(of_module, "responses") if name == "forward")
    timings = answer["timings"]
    parts = sum(timings[f"{part}_seconds"] for part in ("queue", "dispatch", "kernel", "other"))
    assert parts == pytest.approx(timings["total_seconds"])
    assert timings["forward"]["steps"] == answer["calls"]


def test_the_times_and_tokens_of_the_example_add_up(document: dict[str, Any]) -> None:
    answer: Any = next(one for name, _, one in shown(document, "responses") if name == "generate")
    timings, usage = answer["timings"], answer["usage"]
    parts = sum(timings[f"{part}_seconds"] for part in ("queue", "dispatch", "kernel", "other"))
    assert parts == pytest.approx(timings["total_seconds"])
    assert usage["prompt_tokens"] + usage["completion_tokens"] == usage["total_tokens"]
    assert sum(output["completion_tokens"] for output in answer["outputs"]) == usage["completion_tokens"]
