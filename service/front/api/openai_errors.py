"""Errors as OpenAI's clients read them: our shape plus a `code`, and the fields by OpenAI's names."""

from __future__ import annotations

from service.front.errors import BadRequest, LaunchboundError
from service.front.schemas.openai_answers import CompletionErrorBody

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/models")
CODES = {
    "unknown_model": "model_not_found",
    "prompt_too_long": "context_length_exceeded",
    "queue_full": "rate_limit_exceeded",
    "unauthorised": "invalid_api_key",
}
"""OpenAI's code where it has one for our type; else the type is the code."""

PARAMETERS = {"prompts": "prompt", "max_new_tokens": "max_tokens", "mode": "model"}
"""Our name of a field to its name on these routes."""


INVALID = 400
"""What OpenAI answers to a body that is not valid, where our own routes answer 422."""


def is_openai_path(path: str) -> bool:
    """Whether clients of `path` expect OpenAI's errors."""
    return path in PATHS or path.startswith("/v1/models/")


def status_of(error: LaunchboundError, path: str) -> int:
    """The status with which `error` is answered."""
    return INVALID if error.status == BadRequest.status and is_openai_path(path) else error.status


def completion_error(
    type_: str, message: str, param: str | None = None, status: int | None = None
) -> CompletionErrorBody:
    """The body of an error on these routes. What is not valid has one type at OpenAI's, and many codes."""
    code = CODES.get(type_, type_)
    type_ = "invalid_request_error" if status == INVALID else type_
    param = PARAMETERS.get(param, param) if param else None
    return {"error": {"type": type_, "message": message, "param": param, "code": code}}
