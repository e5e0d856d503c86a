"""The OpenAPI document of one instance: what its routes declare, within what it was started with."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from service.front.api.middleware import REQUEST_ID_HEADER, WELL_FORMED
from service.front.model_name import model_name
from service.front.schemas.openai import MAX_COPIES
from service.front.settings import Settings
from service.protocol.modes import AUTO

Schema = dict[str, Any]

FOREIGN_ERRORS = ("HTTPValidationError", "ValidationError")
"""The framework's own shape of a 422, which no route here answers."""

BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

REQUEST_ID: Schema = {
    "description": "The id that was sent, or a new one.",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{WELL_FORMED.pattern}$"},
}


def describe(app: FastAPI, settings: Settings) -> Schema:
    """The document, made once. Its schemas refuse what this instance refuses, as far as a schema can say it.

    How many tokens a prompt has, and what fits in the context, only the engine knows.
    """
    if app.openapi_schema is None:
        document: Schema = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version=app.openapi_version,
            description=app.description,
            routes=app.routes,
        )
        limits = _limits(settings)
        for operation in (one for methods in document["paths"].values() for one in methods.values()):
            _make_exact(operation)
            for parameter in operation.get("parameters", ()):
                _narrow(parameter["name"], parameter.get("schema", {}), limits)
            for name, schema in _body_properties(operation).items():
                _narrow(name, schema, limits)
            _correct_answers(operation)
        for name in FOREIGN_ERRORS:
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


def _make_exact(node: Any) -> None:  # noqa: ANN401 - any JSON value
    """Write the bounds of integers as integers: the framework makes them floats, which round from 2**53."""
    values = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for value in values:
        _make_exact(value)
    if isinstance(node, dict) and node.get("type") == "integer":
        node.update({name: int(node[name]) for name in BOUNDS if isinstance(node.get(name), float)})


def _limits(settings: Settings) -> dict[str, tuple[str, Schema]]:
    """By the name of a parameter or a field: the type that is narrowed, and what that type is narrowed by."""
    modes, most = settings.modes, settings.batch_sizes[-1]
    models = {"enum": [f"{model_name(settings.model)}:{mode}" for mode in [*modes, AUTO]]}
    return {
        "mode": ("string", {"enum": modes}),
        "modes": ("array", {"items": {"type": "string", "enum": modes}, "uniqueItems": True}),
        "model": ("string", models),
        "model_id": ("string", models),
        "batch_size": ("integer", {"minimum": 1, "maximum": most}),
        "prompts": ("array", {"maxItems": most}),
        "prompt": ("array", {"maxItems": most}),
        "n": ("integer", {"maximum": min(most, MAX_COPIES)}),
    }


def _narrow(name: str, schema: Schema, limits: dict[str, tuple[str, Schema]]) -> None:
    """Narrow `schema`, or its forms of the type that is narrowed; a list of token ids is one prompt."""
    kind, narrower = limits.get(name, ("", {}))
    for form in schema.get("anyOf", [schema]):
        if form.get("type") == kind and form.get("items", {}).get("type") != "integer":
            form.update(narrower)


def _body_properties(operation: Schema) -> Schema:
    """The fields of a JSON body; empty where the operation takes none."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    properties: Schema = content.get("schema", {}).get("properties", {})
    return properties


def _correct_answers(operation: Schema) -> None:
    """Declare the id of the request, and a 422 in the shape of all errors, where there can be one at all."""
    answers = operation["responses"]
    for status, answer in answers.items():
        if status.startswith("2"):
            answer.setdefault("headers", {})[REQUEST_ID_HEADER] = REQUEST_ID
    unreadable = answers.get("422", {}).get("content", {}).get("application/json", {}).get("schema", {})
    if unreadable.get("$ref", "").endswith(f"/{FOREIGN_ERRORS[0]}"):
        unreadable["$ref"] = unreadable["$ref"].replace(FOREIGN_ERRORS[0], "ErrorBody")
        if all(parameter["in"] == "path" for parameter in operation.get("parameters", ())):
            del answers["422"]  # any text is a path
