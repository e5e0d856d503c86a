"""Reads a request body within its limits, and refuses one that does not fit its schema.

Values are counted, and their types checked, before the schema, which is slow for each fault.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from math import inf
from typing import Any, Generic, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from service.front.errors import BadRequest, BodyTooLarge, ClientGone, TooSlow
from service.front.limits import BODY_IS_HERE, LARGE_BYTES
from service.front.routes.state import AppState
from service.front.schemas import GenerateBody, PlainGeneration

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
    """Reads bodies of one schema. `prompts`: the field that may be long; `tokens`: it may be token ids.

    `as_sent`: fields that may be long and are not decoded; their value is the bytes of their JSON.
    """

    def __init__(
        self, schema: type[Body], prompts: str = "", tokens: bool = False, as_sent: tuple[str, ...] = ()
    ) -> None:
        self._schema = schema
        self._prompts = prompts
        self._with_tokens = tokens
        self._as_sent = as_sent
        self._others = [name for name in schema.model_fields if name not in (prompts, *as_sent)]
        fields = [(name, msgspec.Raw, msgspec.Raw()) for name in schema.model_fields]
        closed = schema.model_config.get("extra") == "forbid"
        shape = msgspec.defstruct(schema.__name__, fields, forbid_unknown_fields=closed)
        self._decoder = msgspec.json.Decoder(shape)

    async def read(self, request: Request, state: AppState) -> Body:
        """The body. Raises BodyTooLarge, TooSlow, BadRequest, or what refuses a large body unread."""
        return await self.check(await read_bytes(request, state), state)

    async def check(self, body: bytes, state: AppState) -> Body:
        """As `read`, of what was received."""
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
            for name in self._as_sent:
                if memoryview(sent := getattr(found, name)).nbytes:
                    values[name] = bytes(sent)
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
        """Decoded by the form of the first prompt, after the values of a large field are counted.

        To count punctuation is far faster than to decode it, and gives the least number of values.
        """
        name, (most, context) = self._prompts, _limits(state)
        large = bytes(raw) if memoryview(raw).nbytes > LARGE_BYTES else b""
        opening = _OPENING_OF_TOKENS.match(raw) if self._with_tokens else None
        if opening is None:
            _check_prompts(name, least_texts(large), most, "at least ")
            return (_text_or_texts if self._with_tokens else _texts).decode(raw)
        # A comma stands between any two ids, or lists; an empty list has one comma more than ids.
        commas = large.count(b",")
        if opening[1] != b"[":
            _check_tokens(name, commas, context, 1, "at least ")
            return _tokens.decode(raw)
        _check_prompts(name, bytes(raw).count(b"[") - 1, most)  # each list is slow to make
        _check_tokens(name, commas + 1 - most, context, most, "at least ")
        return _lists_of_tokens.decode(raw)


_plain = msgspec.json.Decoder(PlainGeneration).decode


async def read_generation(
    request: Request, state: AppState, reader: BodyReader[GenerateBody]
) -> PlainGeneration:
    """As `reader` reads it, which is asked only for what is not plain, and for what to say where it is wrong.

    Of this size no field can be over its own limit, which the decoder does not know.
    """
    body = await read_bytes(request, state)
    if len(body) <= MAX_FIELD_BYTES:
        with suppress(ValueError, RecursionError):
            plain = _plain(body)
            if len(plain.prompts) <= state.settings.batch_sizes[-1]:
                return plain
    return PlainGeneration(**dict(await reader.check(body, state)))


def least_texts(raw: bytes) -> int:
    """How many texts the JSON of a list has at least: two quotes of each are not escaped.

    An escaped quote follows a backslash, as may the last quote of a text that ends with one.
    """
    return (raw.count(b'"') - raw.count(b'\\"')) // 2


async def read_bytes(request: Request, state: AppState) -> bytes:
    """The body as it is sent. A large one is admitted before it is received."""
    limit = state.settings.max_body_bytes
    announced = _announced_bytes(request)
    if announced is not None and announced > limit:
        raise _too_large(state)
    if announced is not None and announced <= LARGE_BYTES:
        if request.scope.get(BODY_IS_HERE):
            message = await request.receive()
            if message["type"] == "http.request":
                return bytes(message["body"])
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
                    raise _too_large(state)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        seconds = state.settings.body_timeout_seconds
        raise TooSlow(f"the body did not arrive within {seconds:g} s; send it at once") from None


def _limits(state: AppState) -> tuple[int, float]:
    """Prompts of a batch, and tokens of one prompt: infinite while no engine has reported them."""
    engine = state.client.engine
    return state.settings.batch_sizes[-1], inf if engine is None else engine.context


def _check_counts(name: str, prompts: str | list[Any], state: AppState) -> None:
    """Raise BadRequest where there are more prompts, or token ids, than any batch here has."""
    most, context = _limits(state)
    if isinstance(prompts, str):
        return
    if prompts and isinstance(prompts[0], int | float):
        _check_tokens(name, len(prompts), context)
        return
    _check_prompts(name, len(prompts), most)
    _check_tokens(name, sum(len(one) for one in prompts if isinstance(one, list)), context, most)


def _check_prompts(name: str, count: int, most: int, least: str = "") -> None:
    if count > most:
        message = f"{name}: {least}{count} are over the limit of {most}; send them in several requests"
        raise BadRequest(message, type="batch_too_large", param=name)


def _check_tokens(name: str, count: int, context: float, prompts: int = 1, least: str = "") -> None:
    if count > context * prompts:
        message = f"{name}: {least}{count} tokens are over the context of {context} per prompt"
        raise BadRequest(message, type="prompt_too_long", param=name)


def _bounded(found: msgspec.Struct, name: str) -> msgspec.Raw | None:
    """A field as it was sent; None where it was not. Raises BadRequest where it is too large to be valid."""
    raw: msgspec.Raw = getattr(found, name)
    size = memoryview(raw).nbytes
    if size > MAX_FIELD_BYTES:
        raise BadRequest(f"{name}: {size} bytes are over the limit of {MAX_FIELD_BYTES}", param=name)
    return raw if size else None


def _too_large(state: AppState) -> BodyTooLarge:
    limit, workload = state.settings.max_body_bytes, state.settings.workload
    remedy = "fewer or shorter prompts" if workload.tokens else "a smaller batch, or batch_size and seed"
    return BodyTooLarge(f"the body is over the limit of {limit} bytes: send {remedy}")


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
