"""`POST /v1/modes/{mode}/generate`: one batch of prompts in one mode, at once or as a stream."""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from service.front.api.answers import generate_answer, reply, server_timing
from service.front.api.body import read_body
from service.front.api.call import Call, check_limits, check_mode
from service.front.api.request_id import id_of
from service.front.api.state import AppState, state_of
from service.front.api.stream import EventStream, GenerateEvents
from service.front.schemas.answers import ErrorBody, GenerateAnswer
from service.front.schemas.requests import CompareBody, GenerateBody
from service.protocol.messages import Job

router = APIRouter(tags=["generation"])

ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorBody, "description": "The API key is missing or wrong."},
    404: {"model": ErrorBody, "description": "Unknown mode."},
    413: {"model": ErrorBody, "description": "The body is over the limit."},
    422: {"model": ErrorBody, "description": "The body cannot be served; `param` names the field."},
    429: {"model": ErrorBody, "description": "Too many unfinished requests; see Retry-After."},
    503: {
        "model": ErrorBody,
        "description": "Mode or engine not ready, out of memory, draining.",
    },
    504: {"model": ErrorBody, "description": "The deadline passed."},
}


def body_schema(schema: type[BaseModel]) -> dict[str, Any]:
    """OpenAPI for a body that the route reads by itself."""
    content = {"application/json": {"schema": schema.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


def new_job(
    state: AppState,
    job_id: str,
    mode: str,
    body: GenerateBody | CompareBody,
    received_ns: int,
    seed: int | None,
) -> Job:
    """`body` as a job for `mode`, stamped as sent now."""
    return Job(
        id=job_id,
        mode=mode,
        prompts=body.prompts,
        max_new_tokens=body.max_new_tokens,
        temperature=body.temperature,
        top_k=body.top_k,
        seed=seed,
        stop=body.stop,
        ignore_eos=body.ignore_eos,
        stream=body.stream,
        profile=body.profile,
        deadline_ns=received_ns + round(state.settings.request_timeout_seconds * 1e9),
        sent_ns=perf_counter_ns(),
    )


@router.post(
    "/modes/{mode}/generate",
    openapi_extra=body_schema(GenerateBody),
    responses={200: {"model": GenerateAnswer, "content": {"text/event-stream": {}}}, **ERRORS},
)
async def generate(mode: str, request: Request) -> Response:
    """Generate in one mode, and say where the time went. Clocks run from here: the body is parsed."""
    state = state_of(request)
    check_mode(state, mode)
    body = await read_body(request, GenerateBody, state.settings.max_body_bytes)
    received_ns = perf_counter_ns()
    check_limits(state, body)
    job = new_job(state, id_of(request.scope), mode, body, received_ns, body.seed)
    if body.stream:
        return EventStream(state, job, received_ns, GenerateEvents(state, id_of(request.scope)))
    async with Call(state, request.receive) as call:
        timing = await call.timing(call.submit(job), received_ns)
    answer = generate_answer(timing, id_of(request.scope), state.settings.model, state.device)
    # Observed right after the answer has been written, so that nobody waits for the observation.
    asyncio.get_running_loop().call_soon(state.observe, timing)
    return reply(answer, {"Server-Timing": server_timing(answer["timings"])})
