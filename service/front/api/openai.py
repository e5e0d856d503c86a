"""`GET /v1/models` and `POST /v1/completions`: what OpenAI's clients call, each mode as a model."""

from __future__ import annotations

from time import perf_counter_ns, time

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.answers import reply, server_timing
from service.front.api.body import BodyReader
from service.front.api.call import EngineCall, check_sizes
from service.front.api.openai_answers import CompletionContext, CompletionEvents, completion_answer
from service.front.api.openai_errors import INVALID
from service.front.api.openapi import GENERATION_ERRORS, Responses, body_schema, link
from service.front.api.state import AppState, state_of
from service.front.api.stream import EventStream
from service.front.engine_client import EngineClient
from service.front.errors import BadRequest, NotFound, UnknownMode
from service.front.model_name import model_name
from service.front.schemas.openai import CompletionBody
from service.front.schemas.openai_answers import (
    CompletionAnswer,
    CompletionErrorBody,
    ModelBody,
    ModelsAnswer,
    ModelState,
)
from service.protocol.messages import Job
from service.protocol.modes import AUTO
from service.protocol.status import Readiness

CREATED = int(time())
"""When this front started: models have no other date of creation."""

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
    context = CompletionContext(request_id, asked, body.model, copies, usage)
    if body.stream:
        return EventStream(state, job, received_ns, CompletionEvents(state, context))
    async with EngineCall(state, request.scope, request.receive) as call:
        pending = call.submit(job)
        state.observe_all()  # earlier requests, while the engine works
        timing = await call.result(pending, received_ns)
    answer = completion_answer(context, timing, state)
    state.observe_soon(timing)
    return reply(answer, {"Server-Timing": server_timing(timing.parts)})


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
    states = {client.admission.state(mode) for mode in client.configured}
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
