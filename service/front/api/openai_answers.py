"""OpenAI's answers: one body, or the chunks of a stream, with our timings as an extension."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import time

from service.front.api.answers import encode_json, generate_answer
from service.front.api.openai_errors import completion_error
from service.front.api.state import AppState
from service.front.errors import LaunchboundError
from service.front.request_timing import RequestTiming
from service.front.schemas.answers import GenerateAnswer, Usage
from service.front.schemas.openai import Choice, CompletionAnswer, Extension
from service.protocol.messages import FinishReason, Token

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class CompletionContext:
    """What an answer repeats of its request. `copies`: completions per prompt, which follow each other."""

    request_id: str
    model: str
    copies: int
    include_usage: bool


def completion_answer(context: CompletionContext, timing: RequestTiming, state: AppState) -> CompletionAnswer:
    """The body of one request."""
    ours = _ours(context, timing, state)
    choices = [_choice(i, out["text"], out["finish_reason"]) for i, out in enumerate(ours["outputs"])]
    return {
        **_head(context, int(time())),
        "choices": choices,
        "usage": _usage(ours, context.copies),
        "launchbound": _extension(ours),
    }


class CompletionEvents:
    """One chunk per piece of text, one per completion with its reason to end, usage if context for, `[DONE]`.

    The last chunk has our timings. An error is a chunk without `choices`, and then nothing follows.
    """

    def __init__(self, state: AppState, context: CompletionContext) -> None:
        self._state, self._context, self._created = state, context, int(time())

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        """One chunk each."""
        return b"".join(_data(self._chunk([_choice(token.index, token.text, None)])) for token in tokens)

    def end(self, timing: RequestTiming) -> bytes:
        """All that is left to say."""
        ours = _ours(self._context, timing, self._state)
        chunks = [
            self._chunk([_choice(index, "", output["finish_reason"])])
            for index, output in enumerate(ours["outputs"])
        ]
        if self._context.include_usage:
            chunks.append({**self._chunk([]), "usage": _usage(ours, self._context.copies)})
        chunks[-1]["launchbound"] = _extension(ours)
        return b"".join(map(_data, chunks)) + DONE

    def error(self, error: LaunchboundError) -> bytes:
        """Without `[DONE]`, so that nobody takes half a text for a whole one."""
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


def _ours(context: CompletionContext, timing: RequestTiming, state: AppState) -> GenerateAnswer:
    """What the service's own route would answer."""
    return generate_answer(timing, context.request_id, state.settings.model, state.client.device)


def _usage(ours: GenerateAnswer, copies: int) -> Usage:
    """A prompt counts once, however many completions it has."""
    prompt = ours["usage"]["prompt_tokens"] // copies
    generated = ours["usage"]["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _extension(ours: GenerateAnswer) -> Extension:
    return {
        "mode": ours["mode"],
        "device": ours["device"],
        "batch_size": ours["batch_size"],
        "batch_bucket": ours["batch_bucket"],
        "timings": ours["timings"],
    }


def _data(chunk: object) -> bytes:
    """One event; JSON has no raw line ends, so the data is one line."""
    return b"data: " + encode_json(chunk) + b"\n\n"
