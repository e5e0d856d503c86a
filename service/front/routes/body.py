"""Reads a request body within its limits, and refuses one that does not fit its schema.

Values are counted, and their types checked, before the schema, which is slow for each fault.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from service.front.errors import BadRequest, BodyTooLarge, ClientGone, TooSlow
from service.front.limits import LARGE_BYTES
from service.front.routes.state import AppState

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
        body = await _read(request, state)
        if len(body) > LARGE_BYTES:
            await state.large_bodies.turn()
        values = self._values(body, state)
        if self._prompts in values:
            _check_counts(self._prompts, values[self._prompts], state)
        try:
            return self._schema.model_validate(values)
        except ValidationError as error:
            raise _bad_request(error) from None

    def _values(self, body: bytes, state: AppState) -> dict[str, Any]:
        field = ""
        try:
            found = self._decoder.decode(body)
            values = {name: _decode(raw) for name in self._others if (raw := _bounded(found, name))}
            field = self._prompts
            if field and memoryview(prompts := getattr(found, field)).nbytes:
                values[field] = self._prompts_of(prompts, state)
        except msgspec.ValidationError as error:
            raise _wrong_type(str(error), field) from None
        except (ValueError, RecursionError) as error:
            what = f"is no JSON: {str(error)[:200]}" if body else "is empty: send a JSON object"
            raise BadRequest(f"the body {what}", type="invalid_json") from None
        return values

    def _prompts_of(self, raw: msgspec.Raw, state: AppState) -> object:
        """Decoded by the form of the first prompt, after its values are counted."""
        large = bytes(raw) if memoryview(raw).nbytes > LARGE_BYTES else b""
        opening = _OPENING_OF_TOKENS.match(raw) if self._with_tokens else None
        if opening is None:
            if large:
                Limits.of(state).check_texts(self._prompts, large)
            return (_text_or_texts if self._with_tokens else _texts).decode(raw)
        limits = Limits.of(state)
        if opening[1] != b"[":
            limits.check_numbers(self._prompts, large, lists=1)
            return _tokens.decode(raw)
        limits.check_lists(self._prompts, bytes(raw))
        limits.check_numbers(self._prompts, large, lists=limits.prompts)
        return _lists_of_tokens.decode(raw)


async def _read(request: Request, state: AppState) -> bytes:
    """A large body is admitted before it is received."""
    limit = state.settings.max_body_bytes
    announced = _announced_bytes(request)
    if announced is not None and announced > limit:
        raise _too_large(limit)
    if announced is not None and announced <= LARGE_BYTES:
        return await _receive(request, state)
    state.client.check(None)
    with state.large_bodies.slot():
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
    """Receive it, counting its size, as there may be no Content-Length."""
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


def _check_counts(name: str, prompts: str | list[Any], state: AppState) -> None:
    """Raise BadRequest where there are more prompts, or token ids, than any batch here has."""
    if isinstance(prompts, str):
        return
    most, engine = state.settings.batch_sizes[-1], state.client.engine
    of_one = bool(prompts) and isinstance(prompts[0], int | float)
    if not of_one and len(prompts) > most:
        raise _too_many(name, str(len(prompts)), most)
    tokens = len(prompts) if of_one else sum(len(one) for one in prompts if isinstance(one, list))
    if engine is not None and tokens > engine.context * (1 if of_one else most):
        raise _too_long(name, str(tokens), engine.context)


def _bounded(found: msgspec.Struct, name: str) -> msgspec.Raw | None:
    """A field as it was sent; None where it was not. Raises BadRequest where it is too large to be valid."""
    raw: msgspec.Raw = getattr(found, name)
    size = memoryview(raw).nbytes
    if size > MAX_FIELD_BYTES:
        raise BadRequest(f"{name}: {size} bytes are over the limit of {MAX_FIELD_BYTES}", param=name)
    return raw if size else None


@dataclass(frozen=True, slots=True)
class Limits:
    """`prompts` of a batch, and tokens of one prompt: the `context`, None while no engine has reported it.

    To count the punctuation of a JSON list, `raw`, is far faster than to decode it.
    """

    prompts: int
    context: int | None

    @classmethod
    def of(cls, state: AppState) -> Self:
        engine = state.client.engine
        return cls(state.settings.batch_sizes[-1], engine.context if engine is not None else None)

    def check_texts(self, name: str, raw: bytes) -> None:
        """Raise BadRequest where there are more texts than prompts may be."""
        # Two quotes of each text are not escaped; its last one may follow a backslash all the same.
        least = (raw.count(b'"') - raw.count(b'\\"')) // 2
        if least > self.prompts:
            raise _too_many(name, f"at least {least}", self.prompts)

    def check_lists(self, name: str, raw: bytes) -> None:
        if (lists := raw.count(b"[") - 1) > self.prompts:
            raise _too_many(name, str(lists), self.prompts)

    def check_numbers(self, name: str, raw: bytes, lists: int) -> None:
        """Raise BadRequest where there are more token ids than so many `lists` of them may have."""
        # A comma stands between any two ids, or lists; an empty list has one comma more than ids.
        least = raw.count(b",") + 1 - lists
        if self.context is not None and least > self.context * lists:
            raise _too_long(name, f"at least {least}", self.context)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over the limit of {limit} bytes: send fewer or shorter prompts")


def _too_many(name: str, count: str, most: int) -> BadRequest:
    message = f"{name}: {count} are over the limit of {most}; send them in several requests"
    return BadRequest(message, type="batch_too_large", param=name)


def _too_long(name: str, count: str, context: int) -> BadRequest:
    message = f"{name}: {count} tokens are over the context of {context} per prompt"
    return BadRequest(message, type="prompt_too_long", param=name)


def _wrong_type(text: str, field: str) -> BadRequest:
    """What the decoder says, in our words: 'prompts[0]: expected str, got int'."""
    what, _, path = text.replace("`", "").partition(" - at $")
    unknown = re.search(r"unknown field (.*)", what)
    where = unknown[1][:64] if unknown else field + path.lstrip(".")
    message = "there is no such field" if unknown else what[:1].lower() + what[1:]
    param = re.match(r"\w+", where)
    return BadRequest(f"{where}: {message}" if where else message, param=param[0] if param else None)


def _bad_request(error: ValidationError) -> BadRequest:
    """A message about the first fault; it does not echo the input."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    first = faults[0]
    where = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    what = first["msg"].removeprefix("Value error, ")
    message = f"{where}: {what}{more}" if where else f"{what}{more}"
    return BadRequest(message, param=str(first["loc"][0]) if first["loc"] else None)
