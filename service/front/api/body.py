"""Reads a request body within its limits, and refuses one that does not fit its schema.

Work on a body is bounded by what may be served, not by what was sent: its values are counted and their types
checked before the schema, of which every fault takes long, sees them.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from service.front.api.state import AppState
from service.front.errors import BadRequest, BodyTooLarge, ClientGone
from service.front.large_bodies import LARGE_BYTES
from service.front.refusals import TooSlow

Body = TypeVar("Body", bound=BaseModel)

MAX_FIELD_BYTES = 16_384
"""A field other than the prompts: four stop strings of 256 characters, each escaped twice, are shorter."""

_decode = msgspec.json.decode
_texts = msgspec.json.Decoder(list[str])
_text_or_texts = msgspec.json.Decoder(str | list[str])
_tokens = msgspec.json.Decoder(list[int | float])
_lists_of_tokens = msgspec.json.Decoder(list[list[int | float]])
_OPENING_OF_TOKENS = re.compile(rb"\s*\[\s*([\[\d-])")


class BodyReader(Generic[Body]):
    """Reads bodies of one schema. `prompts`: the field that may be long; `tokens`: it may be token ids."""

    def __init__(self, schema: type[Body], prompts: str = "", tokens: bool = False) -> None:
        self._schema = schema
        self._prompts = prompts
        self._with_tokens = tokens
        self._others = [name for name in schema.model_fields if name != prompts]
        fields = [(name, msgspec.Raw, msgspec.Raw()) for name in schema.model_fields]
        closed = schema.model_config.get("extra") == "forbid"
        shape = msgspec.defstruct(schema.__name__, fields, forbid_unknown_fields=closed)
        self._decoder = msgspec.json.Decoder(shape)

    async def read(self, request: Request, state: AppState) -> Body:
        """The body. Raises BodyTooLarge, TooSlow, BadRequest, or what refuses a large body unread."""
        values = self._values(await _read(request, state), state.settings.batch_sizes[-1])
        if self._prompts in values:
            _check_counts(self._prompts, values[self._prompts], state)
        try:
            return self._schema.model_validate(values)
        except ValidationError as error:
            raise _bad_request(error) from None

    def _values(self, body: bytes, most: int) -> dict[str, Any]:
        """The fields that were sent. Raises BadRequest, naming the first at fault."""
        field = ""
        try:
            found = self._decoder.decode(body)
            values = {name: _decode(raw) for name in self._others if (raw := _bounded(found, name))}
            field = self._prompts
            if field and memoryview(prompts := getattr(found, field)).nbytes:
                values[field] = self._prompts_of(prompts, most)
        except msgspec.ValidationError as error:
            raise _wrong_type(str(error), field) from None
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is no JSON: {str(error)[:200]}", type="invalid_json") from None
        return values

    def _prompts_of(self, raw: msgspec.Raw, most: int) -> object:
        """By the form of the first prompt. Lists are counted before any is made: they are slow to make."""
        if not self._with_tokens:
            return _texts.decode(raw)
        opening = _OPENING_OF_TOKENS.match(raw)
        if opening is None:
            return _text_or_texts.decode(raw)
        if opening[1] != b"[":
            return _tokens.decode(raw)
        if (lists := bytes(raw).count(b"[") - 1) > most:
            raise _too_many(self._prompts, lists, most)
        return _lists_of_tokens.decode(raw)


async def _read(request: Request, state: AppState) -> bytes:
    """The bytes of the body. A large one is admitted first: what will be refused is not received."""
    limit = state.settings.max_body_bytes
    announced = _announced_bytes(request)
    if announced is not None and announced > limit:
        raise _too_large(limit)
    if announced is not None and announced <= LARGE_BYTES:
        return await _receive(request, state)
    state.client.check_room()
    with state.large_bodies.place():
        return await _receive(request, state)


def _announced_bytes(request: Request) -> int | None:
    """The size of the body by its header; None where it comes in chunks."""
    for name, value in request.scope["headers"]:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


async def _receive(request: Request, state: AppState) -> bytes:
    """Its size is counted while it arrives: there may be no Content-Length."""
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
                if size > state.settings.max_body_bytes:
                    raise _too_large(state.settings.max_body_bytes)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        seconds = state.settings.body_timeout_seconds
        raise TooSlow(f"the body did not arrive within {seconds:g} s; send it at once") from None


def _bounded(found: msgspec.Struct, name: str) -> msgspec.Raw | None:
    """A field as it was sent; None where it was not. Raises BadRequest for one that no valid value fills."""
    raw: msgspec.Raw = getattr(found, name)
    size = memoryview(raw).nbytes
    if size > MAX_FIELD_BYTES:
        raise BadRequest(f"{name}: {size} bytes are over the limit of {MAX_FIELD_BYTES}", param=name)
    return raw if size else None


def _check_counts(name: str, prompts: str | list[Any], state: AppState) -> None:
    """Raise BadRequest where there are more prompts, or token ids, than any batch here has."""
    if isinstance(prompts, str):
        return
    most = state.settings.batch_sizes[-1]
    tokens = sum(1 if isinstance(one, int | float) else len(one) * isinstance(one, list) for one in prompts)
    of_one = bool(prompts) and isinstance(prompts[0], int | float)
    if not of_one and len(prompts) > most:
        raise _too_many(name, len(prompts), most)
    engine = state.client.engine
    if engine is not None and tokens > engine.context * (1 if of_one else most):
        message = f"{name}: {tokens} tokens are over the context of {engine.context} per prompt"
        raise BadRequest(message, type="prompt_too_long", param=name)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over the limit of {limit} bytes: send fewer or shorter prompts")


def _too_many(name: str, count: int, most: int) -> BadRequest:
    message = f"{name}: {count} are over the limit of {most}; send them in several requests"
    return BadRequest(message, type="batch_too_large", param=name)


def _wrong_type(text: str, field: str) -> BadRequest:
    """What the decoder says, in our words: 'prompts[0]: expected str, got int'."""
    what, _, path = text.replace("`", "").partition(" - at $")
    unknown = re.search(r"unknown field (.*)", what)
    place = unknown[1][:64] if unknown else field + path.lstrip(".")
    message = "there is no such field" if unknown else what[:1].lower() + what[1:]
    param = re.match(r"\w+", place)
    return BadRequest(f"{place}: {message}" if place else message, param=param[0] if param else None)


def _bad_request(error: ValidationError) -> BadRequest:
    """A message about the first fault; it does not echo the input."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    first = faults[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}"
    return BadRequest(message, param=str(first["loc"][0]) if first["loc"] else None)
