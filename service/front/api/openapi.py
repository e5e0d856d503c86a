"""What the OpenAPI document shows beyond the routes' signatures: request bodies and errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from service.front.schemas.answers import ErrorBody

Responses = dict[int | str, dict[str, Any]]


def error(status: int, description: str) -> Responses:
    """One error status, in the shape of all errors."""
    return {status: {"model": ErrorBody, "description": description}}


UNAUTHORISED = error(401, "The API key is missing or wrong.")
GENERATION_ERRORS: Responses = {
    **UNAUTHORISED,
    **error(404, "Unknown mode."),
    **error(413, "The body is over the limit."),
    **error(422, "The body cannot be served; `param` names the field."),
    **error(429, "Too many unfinished requests; see Retry-After."),
    **error(503, "Mode or engine not ready, out of memory, draining."),
    **error(504, "The deadline passed."),
}


def body_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI for a body that the route reads by itself; nested models stand inline.

    The document has one schema per body and no place for `$defs`, to which pydantic's references point.
    """
    whole = schema.model_json_schema()
    content = {"application/json": {"schema": _inline(whole, whole.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """`node` with each reference to one of `definitions` replaced by it."""
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    inlined = {key: _inline(value, definitions) for key, value in node.items() if key != "$ref"}
    if "$ref" in node:
        inlined = {**_inline(definitions[node["$ref"].removeprefix("#/$defs/")], definitions), **inlined}
    return inlined
