"""`POST /v1/modes/{mode}/generate`: one batch of prompts in one mode, at once or as a stream."""

from __future__ import annotations

from time import perf_counter_ns

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.answers import generate_answer, reply, server_timing
from service.front.api.body import BodyReader
from service.front.api.call import EngineCall, check_limits, new_job
from service.front.api.openapi import GENERATION_ERRORS, Responses, body_schema
from service.front.api.state import state_of
from service.front.api.stream import EventStream, GenerateEvents
from service.front.schemas.answers import GenerateAnswer
from service.front.schemas.requests import GenerateBody
from service.protocol.modes import AUTO

router = APIRouter(tags=["generation"])
_body = BodyReader(GenerateBody, "prompts")


RESPONSES: Responses = {
    200: {"model": GenerateAnswer, "content": {"text/event-stream": {}}},
    **GENERATION_ERRORS,
}


# Before the other route, which would take `auto` for a mode; entered directly, both are `generate`.
@router.post(
    f"/modes/{AUTO}/generate",
    operation_id="generate_auto",
    openapi_extra=body_schema(GenerateBody),
    responses=RESPONSES,
)
async def generate_auto(request: Request) -> Response:
    """Generate in the mode that is advised for the batch size, which the answer names with the reason."""
    return await generate(AUTO, request)


@router.post(
    "/modes/{mode}/generate",
    operation_id="generate",
    openapi_extra=body_schema(GenerateBody),
    responses=RESPONSES,
)
async def generate(mode: str, request: Request) -> Response:
    """Generate in one mode, and report where the time went. The clock starts when the body is parsed."""
    state = state_of(request)
    state.check_endpoint(mode)
    body = await _body.read(request, state)
    received_ns = perf_counter_ns()
    check_limits(state, body)
    request_id: str = request.state.request_id
    asked = state.asked(mode, len(body.prompts))
    request.state.mode = asked.mode
    job = new_job(state, request_id, asked.mode, body, received_ns, body.seed, body.sample)
    if body.stream:
        return EventStream(state, job, received_ns, GenerateEvents(state, request_id, asked))
    async with EngineCall(state, request.scope, request.receive) as call:
        pending = call.submit(job)
        state.observe_all()  # earlier requests, while the engine works
        timing = await call.result(pending, received_ns)
    answer = generate_answer(timing, asked, request_id, state.settings.model, state.client.device)
    state.observe_soon(timing)
    return reply(answer, {"Server-Timing": server_timing(timing.parts)})
