"""Reads a request body within its limit, and refuses one that does not fit its schema."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from service.front.errors import BadRequest, BodyTooLarge, ClientGone

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, schema: type[Body], limit_bytes: int) -> Body:
    """The body as `schema`. Its size is counted while it arrives: a Content-Length may be wrong or missing.

    Raises BodyTooLarge, or BadRequest naming the first field at fault.
    """
    try:
        return schema.model_validate_json(await _read(request, limit_bytes))
    except ValidationError as error:
        raise _bad_request(error) from None


async def _read(request: Request, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection before its body was complete")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise BodyTooLarge(
                f"the body is over the limit of {limit_bytes} bytes: send fewer or shorter prompts"
            )
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _bad_request(error: ValidationError) -> BadRequest:
    """A message about the first fault; it does not echo the input."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    first = faults[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    message = f"{place}: {first['msg']}{more}" if place else f"{first['msg']}{more}"
    kind = "invalid_json" if first["type"] == "json_invalid" else "invalid_request"
    return BadRequest(message, type=kind, param=str(first["loc"][0]) if first["loc"] else None)
