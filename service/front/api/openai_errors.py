"""Errors as OpenAI's clients read them: our shape plus a `code`, and the fields by OpenAI's names."""

from __future__ import annotations

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


def is_openai_path(path: str) -> bool:
    """Whether clients of `path` expect OpenAI's errors."""
    return path in PATHS or path.startswith("/v1/models/")


def completion_error(type_: str, message: str, param: str | None = None) -> CompletionErrorBody:
    """The body of an error on these routes."""
    param = PARAMETERS.get(param, param) if param else None
    return {"error": {"type": type_, "message": message, "param": param, "code": CODES.get(type_, type_)}}
