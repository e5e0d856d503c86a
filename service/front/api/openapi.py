"""What the OpenAPI document shows beyond the routes' signatures: request bodies and errors."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from service.front.schemas.answers import ErrorBody

Responses = dict[int | str, dict[str, Any]]

RETRY_AFTER: dict[str, Any] = {
    "description": "Seconds after which another attempt may succeed.",
    "required": True,
    "schema": {"type": "integer", "minimum": 0},
}
CHALLENGE: dict[str, Any] = {
    "description": "The scheme of the key, by RFC 6750.",
    "required": True,
    "schema": {"type": "string", "pattern": "^Bearer "},
}
HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": CHALLENGE},
    429: {"Retry-After": RETRY_AFTER},
    503: {"Retry-After": RETRY_AFTER},
}
"""The headers that an error of this status always has."""


def error(status: int, description: str) -> Responses:
    """One error status, in the shape of all errors."""
    declared: dict[str, Any] = {"model": ErrorBody, "description": description}
    if status in HEADERS:
        declared["headers"] = HEADERS[status]
    return {status: declared}


OF_ANY_REQUEST: Responses = {
    **error(400, "No HTTP that can be understood."),
    **error(408, "The request did not arrive in time."),
    **error(431, "Request line and headers are over the limit."),
    **error(500, "A fault of the service; its log has the reason under the request id."),
    **error(503, "As many connections as are allowed are open."),
}
"""Also where the server refuses a connection or a head that no route has seen."""

ACCESS_ERRORS: Responses = {
    **error(401, "The API key is missing or wrong."),
    **error(403, "The `Host` is not one of this service's, or a web page of another origin calls."),
}
POST_ERRORS: Responses = error(415, "The body is not JSON.")
BODY_ERRORS: Responses = {
    **POST_ERRORS,
    **error(408, "The body did not arrive in time."),
    **error(413, "The body is over the limit."),
}
GENERATION_ERRORS: Responses = {
    **ACCESS_ERRORS,
    **BODY_ERRORS,
    **error(404, "Unknown mode."),
    **error(
        409,
        "A sweep is in progress, and the request has `X-Launchbound-Client` (see Retry-After); or `sample`"
        " is asked for, and a request cannot be sampled here.",
    ),
    **error(422, "The body cannot be served; `param` names the field."),
    **error(429, "Too many unfinished requests; see Retry-After."),
    **error(503, "Mode or engine not ready, out of memory, draining."),
    **error(504, "The deadline passed."),
}
STUDY_ERRORS: Responses = {
    **ACCESS_ERRORS,
    **POST_ERRORS,
    **{status: GENERATION_ERRORS[status] for status in (404, 422, 504)},
    **error(409, "A sweep is in progress, or another study; see Retry-After."),
    **error(503, "The engine is not ready, or the anatomy process ended."),
}
NO_STUDY = error(404, "No such finding; the message names the POST that makes one.")


def link(operation: str, **parameters: str) -> dict[str, Any]:
    """From an answer to an operation by its id: parameters by name, each a place in the answer's body."""
    given = {name: f"$response.body#{place}" for name, place in parameters.items()}
    return {operation: {"operationId": operation, "parameters": given}}


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
