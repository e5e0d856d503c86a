"""What is said of a body that is refused: the first fault, in our words; never the input."""

from __future__ import annotations

import re

from pydantic import ValidationError

from service.front.errors import BadRequest, BodyTooLarge


def too_large(limit: int) -> BodyTooLarge:
    """More bytes than `limit`."""
    return BodyTooLarge(f"the body is over the limit of {limit} bytes: send fewer or shorter prompts")


def too_many(name: str, count: str, most: int) -> BadRequest:
    """More prompts than `most`; `count` is their number, in words where only the least is known."""
    message = f"{name}: {count} are over the limit of {most}; send them in several requests"
    return BadRequest(message, type="batch_too_large", param=name)


def too_long(name: str, count: str, context: int) -> BadRequest:
    """More token ids than prompts of `context` tokens have; `count` as in `too_many`."""
    message = f"{name}: {count} tokens are over the context of {context} per prompt"
    return BadRequest(message, type="prompt_too_long", param=name)


def wrong_type(text: str, field: str) -> BadRequest:
    """What the decoder says, in our words: 'prompts[0]: expected str, got int'."""
    what, _, path = text.replace("`", "").partition(" - at $")
    unknown = re.search(r"unknown field (.*)", what)
    place = unknown[1][:64] if unknown else field + path.lstrip(".")
    message = "there is no such field" if unknown else what[:1].lower() + what[1:]
    param = re.match(r"\w+", place)
    return BadRequest(f"{place}: {message}" if place else message, param=param[0] if param else None)


def bad_request(error: ValidationError) -> BadRequest:
    """A message about the first fault; it does not echo the input."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    first = faults[0]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in first["loc"]).lstrip(".")
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    what = first["msg"].removeprefix("Value error, ")
    message = f"{place}: {what}{more}" if place else f"{what}{more}"
    return BadRequest(message, param=str(first["loc"][0]) if first["loc"] else None)
