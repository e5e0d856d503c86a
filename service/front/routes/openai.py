"""`GET /v1/models` and `POST /v1/completions`: what OpenAI's clients call, each mode as a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, time
from typing import Literal, NotRequired, cast

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.errors import BadRequest, LaunchboundError, NotFound, UnknownMode
from service.front.request_timing import RequestTiming, TimingsBody
from service.front.routes.answers import (
    GENERATION_ERRORS,
    ErrorDetail,
    GenerateAnswer,
    GenerateAnswers,
    ModeName,
    Responses,
    Usage,
    body_schema,
    encode_json,
    reply,
)
from service.front.routes.body import BodyReader
from service.front.routes.engine_call import check_limits, new_job, respond
from service.front.routes.state import AppState, state_of
from service.front.schemas import CompletionBody
from service.front.settings import model_name
from service.modes import AUTO
from service.records import FinishReason, Job, Token


class Choice(TypedDict):
    """One completion, or in a stream a piece of it; `finish_reason` comes with its last."""

    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None


class Extension(TypedDict):
    """What OpenAI's answer has no field for; OpenAI's clients ignore it."""

    mode: ModeName
    device: str
    batch_size: int
    batch_bucket: int
    timings: TimingsBody


class CompletionAnswer(TypedDict):
    """Answer of completions, and every chunk of a stream; `launchbound` comes in the last."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[Choice]
    usage: NotRequired[Usage | None]
    launchbound: NotRequired[Extension]


class ModelBody(TypedDict):
    """One mode of this instance as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    revision: str | None


class ModelsAnswer(TypedDict):
    """Answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelBody]


class CompletionErrorDetail(ErrorDetail):
    """The one error shape, and `code`, which OpenAI's clients read.

    There is none where the connection was refused before the address was known: 400, 408, 431, and a 503 for
    too many connections.
    """

    code: NotRequired[str]


class CompletionErrorBody(TypedDict):
    """Answer of these routes where they cannot serve."""

    error: CompletionErrorDetail


CREATED = int(time())
"""When this front started: models have no other date of creation."""

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

OPENAI_ERRORS: Responses = {
    INVALID if status == 422 else status: {**shown, "model": CompletionErrorBody}
    for status, shown in GENERATION_ERRORS.items()
}

router = APIRouter(tags=["openai"])
_body = BodyReader(CompletionBody, "prompt", tokens=True)


@router.get("/models", responses={200: {"model": ModelsAnswer}, 401: OPENAI_ERRORS[401]})
async def models(request: Request) -> Response:
    """Every configured mode as a model, in the ladder's order, ready or not, and `auto` last."""
    state = state_of(request)
    listed = [_model(state, mode) for mode in [*state.settings.ladder, AUTO]]
    return reply({"object": "list", "data": listed})


@router.post("/chat/completions", include_in_schema=False)
async def chat(_: Request) -> Response:
    """Not served; the error names the route to use."""
    raise NotFound("there is no chat here: the models complete text; send it to POST /v1/completions")


@router.post(
    "/completions",
    openapi_extra=body_schema(CompletionBody),
    responses={200: {"model": CompletionAnswer, "content": {"text/event-stream": {}}}, **OPENAI_ERRORS},
)
async def completions(request: Request) -> Response:
    """Complete one batch of prompts in the mode that the model names, at once or as a stream."""
    state = state_of(request)
    body = await _body.read(request, state)
    received_ns = perf_counter_ns()
    mode = request.state.mode = _mode_of(state, body.model)
    copies = body.n or 1
    _check_rows(state, len(body.prompt), copies)
    check_limits(state, body.prompt, body.max_tokens or 16, ("prompt", "max_tokens"))
    request_id: str = request.state.request_id
    asked = state.asked(mode, len(body.prompt) * copies)
    request.state.mode = asked.mode
    job = _job(state, request_id, asked.mode, body, received_ns)
    usage = bool(body.stream_options and body.stream_options.include_usage)
    answers = CompletionAnswers(GenerateAnswers(state, request_id, asked), body.model, copies, usage)
    return await respond(state, request, job, received_ns, answers)


def _model(state: AppState, mode: str) -> ModelBody:
    client = state.client
    return {
        "id": f"{model_name(state.settings.model)}:{mode}",
        "object": "model",
        "created": CREATED,
        "owned_by": "launchbound",
        "max_model_len": client.engine.context if client.engine else None,
        "revision": client.engine.model_revision if client.engine else None,
    }


def _mode_of(state: AppState, model: str) -> str:
    """The mode that a model id names; raises UnknownMode, 404, listing the ids there are."""
    ids = {f"{model_name(state.settings.model)}:{mode}": mode for mode in [*state.settings.ladder, AUTO]}
    if model not in ids:
        message = f"no model '{model[:128]}' here; try one of {', '.join(ids)}"
        raise UnknownMode(message, type="unknown_model", param="model")
    return ids[model]


def _check_rows(state: AppState, prompts: int, copies: int) -> None:
    largest = state.settings.batch_sizes[-1]
    if prompts * copies > largest:
        what = f"n: {prompts} × {copies}" if copies > 1 else f"prompt: {prompts}"
        message = f"{what} completions are over the limit of {largest}; send them in several requests"
        raise BadRequest(message, type="batch_too_large", param="n" if copies > 1 else "prompt")


def _job(state: AppState, request_id: str, mode: str, body: CompletionBody, received_ns: int) -> Job:
    """`body` as a job for `mode`; null is each field's default."""
    return new_job(
        state,
        request_id,
        received_ns,
        mode=mode,
        prompts=[prompt for prompt in body.prompt for _ in range(body.n or 1)],
        max_new_tokens=body.max_tokens or 16,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=body.top_p,
        top_k=body.top_k if body.top_k and body.top_k > 0 else None,
        seed=body.seed,
        stop=body.stop or [],
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
    )


DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class CompletionAnswers:
    """One body; or one chunk per token, one per completion with its finish reason, usage if wanted, `[DONE]`.

    The last chunk has our timings. An error is a chunk without `choices`, and the last. `copies`: completions
    per prompt, consecutive in the answer.
    """

    own: GenerateAnswers
    model: str
    copies: int
    include_usage: bool
    created: int = field(default_factory=lambda: int(time()))

    def answer(self, timing: RequestTiming) -> CompletionAnswer:
        own = self.own.answer(timing)
        choices = [_choice(i, out["text"], out["finish_reason"]) for i, out in enumerate(own["outputs"])]
        return {**self._head(choices), "usage": _usage(own, self.copies), "launchbound": _extension(own)}

    def tokens(self, tokens: Sequence[Token]) -> bytes:
        return b"".join(_data(self._chunk([_choice(token.index, token.text, None)])) for token in tokens)

    def end(self, timing: RequestTiming) -> bytes:
        own = self.own.answer(timing)
        chunks = [
            self._chunk([_choice(index, "", output["finish_reason"])])
            for index, output in enumerate(own["outputs"])
        ]
        if self.include_usage:
            chunks.append({**self._chunk([]), "usage": _usage(own, self.copies)})
        chunks[-1]["launchbound"] = _extension(own)
        return b"".join(map(_data, chunks)) + DONE

    def error(self, error: LaunchboundError) -> bytes:
        """Without `[DONE]`, so that no client takes a partial text for a complete one."""
        return _data(completion_error(error.type, error.message, error.param))

    def _chunk(self, choices: list[Choice]) -> CompletionAnswer:
        return {**self._head(choices), "usage": None} if self.include_usage else self._head(choices)

    def _head(self, choices: list[Choice]) -> CompletionAnswer:
        return {
            "id": f"cmpl-{self.own.request_id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }


def _choice(index: int, text: str, reason: FinishReason | None) -> Choice:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": reason}


def _usage(own: GenerateAnswer, copies: int) -> Usage:
    prompt = own["usage"]["prompt_tokens"] // copies
    generated = own["usage"]["completion_tokens"]
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _extension(own: GenerateAnswer) -> Extension:
    return cast(Extension, {field: own[field] for field in Extension.__annotations__})  # type: ignore[literal-required]


def _data(chunk: object) -> bytes:
    return b"data: " + encode_json(chunk) + b"\n\n"


def completion_error(
    type_: str, message: str, param: str | None = None, status: int | None = None
) -> CompletionErrorBody:
    """Of an error on these routes. What is not valid has one type at OpenAI's, and many codes."""
    code = CODES.get(type_, type_)
    type_ = "invalid_request_error" if status == INVALID else type_
    param = PARAMETERS.get(param, param) if param else None
    return {"error": {"type": type_, "message": message, "param": param, "code": code}}
