"""OpenAI's answers: one body, or the chunks of a stream, with our timings as an extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time

from service.front.api.answers import encode_json, generate_answer
from service.front.api.openai_errors import completion_error
from service.front.api.state import AppState
from service.front.auto_mode import Asked
from service.front.errors import LaunchboundError
from service.front.request_timing import RequestTiming
from service.front.schemas.answers import GenerateAnswer, Usage
from service.front.schemas.openai_answers import Choice, CompletionAnswer, Extension
from service.protocol.messages import FinishReason, Token

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class CompletionContext:
    """What an answer needs of its request. `copies`: completions per prompt, consecutive in the answer."""

    request_id: str
    asked: Asked
    model: str
    copies: int
    include_usage: bool


def completion_answer(context: CompletionContext, timing: RequestTiming, state: AppState) -> CompletionAnswer:
    """The body of one request."""
    own = _own_answer(context, timing, state)
    choices = [_choice(i, out["text"], out["finish_reason"]) for i, out in enumerate(own["outputs"])]
    return {
        **_head(context, int(time())),
        "choices": choices,
        "usage": _usage(own, context.copies),
        "launchbound": _extension(own),
    }


class CompletionEvents:
    """One chunk per token, one per completion with its finish reason, usage if requested, `[DONE]`.

    The last chunk has our timings. An error is a chunk without `choices`, and the last.
    """

    def __init__(self, state: AppState, context: CompletionContext) -> None:
        self._state = state
        self._context = context
        self._created = int(time())

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        """One chunk each."""
        return b"".join(_data(self._chunk([_choice(token.index, token.text, None)])) for token in tokens)

    def end(self, timing: RequestTiming) -> bytes:
        """Finish reasons, usage and timings."""
        own = _own_answer(self._context, timing, self._state)
        chunks = [
            self._chunk([_choice(index, "", output["finish_reason"])])
            for index, output in enumerate(own["outputs"])
        ]
        if self._context.include_usage:
            chunks.append({**self._chunk([]), "usage": _usage(own, self._context.copies)})
        chunks[-1]["launchbound"] = _extension(own)
        return b"".join(map(_data, chunks)) + DONE

    def error(self, error: LaunchboundError) -> bytes:
        """Without `[DONE]`, so that no client takes a partial text for a complete one."""
        return _data(completion_error(error.type, error.message, error.param))

    def _chunk(self, choices: list[Choice]) -> CompletionAnswer:
        chunk: CompletionAnswer = {**_head(self._context, self._created), "choices": choices}
        if self._context.include_usage:
            chunk["usage"] = None
        return chunk


def _head(context: CompletionContext, created: int) -> CompletionAnswer:
    return {
        "id": f"cmpl-{context.request_id}",
        "object": "text_completion",
        "created": created,
        "model": context.model,
        "choices": [],
    }


def _choice(index: int, text: str, reason: FinishReason | None) -> Choice:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _own_answer(context: CompletionContext, timing: RequestTiming, state: AppState) -> GenerateAnswer:
    """The answer of the service's own route."""
    settings, device = state.settings, state.client.device
    return generate_answer(timing, context.asked, context.request_id, settings.model, device)


def _usage(own: GenerateAnswer, copies: int) -> Usage:
    """A prompt counts once, however many completions it has."""
    prompt = own["usage"]["prompt_tokens"] // copies
    generated = own["usage"]["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _extension(own: GenerateAnswer) -> Extension:
    return {
        "mode": own["mode"],
        "device": own["device"],
        "batch_size": own["batch_size"],
        "batch_bucket": own["batch_bucket"],
        "timings": own["timings"],
    }


def _data(chunk: object) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"data: " + encode_json(chunk) + b"\n\n"
