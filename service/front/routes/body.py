"""Reads a request body within its limits, and refuses one that does not fit its schema."""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from service.front.errors import BadRequest, BodyTooLarge, ClientGone, TooSlow
from service.front.routes.state import AppState

Body = TypeVar("Body", bound=BaseModel)

MAX_VALUES = 1000
"""In a field other than the prompts; none may have as many."""


class BodyReader(Generic[Body]):
    """Reads bodies of one schema. `prompts`: the field that may be long.

    Values are counted before the schema sees them, which makes an error of each wrong one: half a million
    would hold the event loop for seconds.
    """

    def __init__(self, schema: type[Body], prompts: str = "") -> None:
        self._schema = schema
        self._prompts = prompts
        self._closed = schema.model_config.get("extra") == "forbid"

    async def read(self, request: Request, state: AppState) -> Body:
        """The body. Raises BodyTooLarge, TooSlow, ClientGone or BadRequest."""
        values = self._known(_decoded(await _receive(request, state)))
        for name, value in values.items():
            if name == self._prompts:
                _check_counts(name, value, state)
            elif isinstance(value, list | dict) and len(value) > MAX_VALUES:
                raise BadRequest(f"{name}: {len(value)} values are too many", param=name)
        try:
            return self._schema.model_validate(values)
        except ValidationError as error:
            raise _bad_request(error) from None

    def _known(self, values: dict[str, Any]) -> dict[str, Any]:
        """The fields of the schema. Raises BadRequest for another one where the schema forbids it."""
        fields = self._schema.model_fields
        if self._closed and (unknown := next((name for name in values if name not in fields), None)):
            raise BadRequest(f"{unknown[:64]}: there is no such field", param=unknown[:64])
        return {name: value for name, value in values.items() if name in fields}


def _decoded(body: bytes) -> dict[str, Any]:
    if not body:
        raise BadRequest("the body is empty: send a JSON object", type="invalid_json")
    try:
        values = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {str(error)[:200]}", type="invalid_json") from None
    if not isinstance(values, dict):
        raise BadRequest("the body is no JSON object: send one")
    return values


async def _receive(request: Request, state: AppState) -> bytes:
    """Receive it, counting its size, as there may be no Content-Length."""
    limit = state.settings.max_body_bytes
    announced = dict(request.scope["headers"]).get(b"content-length", b"0")
    if int(announced) > limit:
        raise _too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(state.settings.body_timeout_seconds):
            while True:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client closed the connection before its body was complete")
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > limit:
                    raise _too_large(limit)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        seconds = state.settings.body_timeout_seconds
        raise TooSlow(f"the body did not arrive within {seconds:g} s; send it at once") from None


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over the limit of {limit} bytes: send fewer or shorter prompts")


def _check_counts(name: str, prompts: object, state: AppState) -> None:
    """Raise BadRequest where there are more prompts, or token ids, than any batch here has."""
    if not isinstance(prompts, list):
        return
    most, engine = state.settings.batch_sizes[-1], state.client.engine
    is_one = bool(prompts) and isinstance(prompts[0], int | float)  # the token ids of one prompt
    if not is_one and len(prompts) > most:
        message = f"{name}: {len(prompts)} are over the limit of {most}; send them in several requests"
        raise BadRequest(message, type="batch_too_large", param=name)
    tokens = len(prompts) if is_one else sum(len(one) for one in prompts if isinstance(one, list))
    if engine is not None and tokens > engine.context * (1 if is_one else most):
        message = f"{name}: {tokens} tokens are over the context of {engine.context} per prompt"
        raise BadRequest(message, type="prompt_too_long", param=name)


def _bad_request(error: ValidationError) -> BadRequest:
    """A message about the first fault; it does not echo the input."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    first = faults[0]
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    what = first["msg"].removeprefix("Value error, ")
    message = f"{where}: {what}{more}" if where else f"{what}{more}"
    return BadRequest(message, param=str(first["loc"][0]) if first["loc"] else None)
