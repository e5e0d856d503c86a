"""`GET /v1/models` and `POST /v1/completions`: what OpenAI's clients call, each mode as a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns, time
from typing import Literal, NotRequired

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.engine_client import EngineClient
from service.front.errors import BadRequest, LaunchboundError, NotFound, UnknownMode
from service.front.request_timing import RequestTiming, TimingsBody
from service.front.routes.answers import (
    GENERATION_ERRORS,
    GenerateAnswer,
    GenerateAnswers,
    ModeName,
    Responses,
    Usage,
    body_schema,
    encode_json,
    link,
    reply,
)
from service.front.routes.body import BodyReader
from service.front.routes.engine_call import check_sizes, respond
from service.front.routes.state import AppState, state_of
from service.front.schemas import CompletionBody
from service.front.settings import model_name
from service.modes import AUTO
from service.records import FinishReason, Job, Readiness, Token


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


class ModelState(TypedDict):
    """The mode behind a model id."""

    mode: str
    state: Readiness
    effective: str | None
    reason: str | None


class ModelBody(TypedDict):
    """One mode of this instance as a model.

    `max_model_len` is the context in tokens, `revision` the Hugging Face hub's commit of the model, each null
    until it is known, the latter also for a model that is none of the hub's.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None
    revision: str | None
    launchbound: ModelState


class ModelsAnswer(TypedDict):
    """Answer of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelBody]


class CompletionErrorDetail(TypedDict):
    """The one error shape, and `code`, which OpenAI's clients read.

    There is none where the connection was refused before the address was known: 400, 408, 431, and a 503 for
    too many connections.
    """

    type: str
    message: str
    param: str | None
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


@router.get(
    "/models",
    responses={
        200: {"model": ModelsAnswer, "links": link("read_model", model_id="/data/0/id")},
        401: OPENAI_ERRORS[401],
    },
)
async def models(request: Request) -> Response:
    """Every configured mode as a model, in the ladder's order, ready or not, and `auto` last."""
    state = state_of(request)
    answer: ModelsAnswer = {
        "object": "list",
        "data": [_model(state, mode) for mode in [*state.settings.modes, AUTO]],
    }
    return reply(answer)


@router.get(
    "/models/{model_id}",
    operation_id="read_model",
    responses={200: {"model": ModelBody}, 401: OPENAI_ERRORS[401], 404: OPENAI_ERRORS[404]},
)
async def model(model_id: str, request: Request) -> Response:
    """One of them."""
    state = state_of(request)
    return reply(_model(state, _mode_of(state, model_id)))


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
    _check_limits(state, body, copies)
    request_id: str = request.state.request_id
    asked = state.asked(mode, len(body.prompt) * copies)
    request.state.mode = asked.mode
    job = _new_job(state, request_id, asked.mode, body, copies, received_ns)
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
        "launchbound": _auto_state(client) if mode == AUTO else _mode_state(client, mode),
    }


def _mode_state(client: EngineClient, mode: str) -> ModelState:
    status = client.modes.get(mode)
    return {
        "mode": mode,
        "state": status.state if status else "cold",
        "effective": status.effective if status else None,
        "reason": status.reason if status else None,
    }


def _auto_state(client: EngineClient) -> ModelState:
    """`auto` is as far as the mode that is furthest: what it runs as, each answer says."""
    states = {client.state(mode) for mode in client.configured}
    furthest: list[Readiness] = ["ready", "warming", "cold", "failed"]
    return {
        "mode": AUTO,
        "state": next(state for state in furthest if state in states),
        "effective": None,
        "reason": "runs the mode that is advised for the batch size; GET /v1/modes says which, and why",
    }


def _mode_of(state: AppState, model: str) -> str:
    """The mode that a model id names; raises UnknownMode, 404, listing the ids there are."""
    ids = {f"{model_name(state.settings.model)}:{mode}": mode for mode in [*state.settings.modes, AUTO]}
    if model not in ids:
        message = f"no model '{model[:128]}' here; try one of {', '.join(ids)}"
        raise UnknownMode(message, type="unknown_model", param="model")
    return ids[model]


def _check_limits(state: AppState, body: CompletionBody, copies: int) -> None:
    """Raise BadRequest, naming the limit, for what this instance cannot run in any mode."""
    rows = len(body.prompt) * copies
    largest = state.settings.batch_sizes[-1]
    if rows > largest:
        what = f"n: {len(body.prompt)} × {copies}" if copies > 1 else f"prompt: {rows}"
        message = f"{what} completions are over the limit of {largest}; send them in several requests"
        raise BadRequest(message, type="batch_too_large", param="n" if copies > 1 else "prompt")
    engine = state.client.engine
    if engine is not None:
        check_sizes(engine, body.prompt, "prompt")
    new = body.max_tokens or 16
    if engine is not None and new >= engine.context:
        message = f"max_tokens: {new} and a prompt are over the context of {engine.context}"
        raise BadRequest(message, param="max_tokens")


def _new_job(
    state: AppState, request_id: str, mode: str, body: CompletionBody, copies: int, received_ns: int
) -> Job:
    """`body` as a job for `mode`, stamped as sent now; null is each field's default."""
    return Job(
        request_id=request_id,
        mode=mode,
        prompts=[prompt for prompt in body.prompt for _ in range(copies)],
        max_new_tokens=body.max_tokens or 16,
        min_tokens=body.min_tokens or 0,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=body.top_p,
        top_k=body.top_k if body.top_k and body.top_k > 0 else None,
        seed=body.seed,
        stop=body.stop or [],
        ignore_eos=bool(body.ignore_eos),
        stream=bool(body.stream),
        deadline_ns=received_ns + round(state.settings.request_timeout_seconds * 1e9),
        sent_ns=perf_counter_ns(),
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
        return {
            **self._head(choices),
            "created": int(time()),
            "usage": _usage(own, self.copies),
            "launchbound": _extension(own),
        }

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
        chunk = self._head(choices)
        if self.include_usage:
            chunk["usage"] = None
        return chunk

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


def is_openai_path(path: str) -> bool:
    return path in PATHS or path.startswith("/v1/models/")


def status_of(error: LaunchboundError, path: str) -> int:
    return INVALID if error.status == BadRequest.status and is_openai_path(path) else error.status


def completion_error(
    type_: str, message: str, param: str | None = None, status: int | None = None
) -> CompletionErrorBody:
    """The body of an error on these routes. What is not valid has one type at OpenAI's, and many codes."""
    code = CODES.get(type_, type_)
    type_ = "invalid_request_error" if status == INVALID else type_
    param = PARAMETERS.get(param, param) if param else None
    return {"error": {"type": type_, "message": message, "param": param, "code": code}}
