"""`POST /v1/modes/{mode}/generate`: prompts in one mode; `POST /v1/compare`: in several, paired by round."""

from __future__ import annotations

import secrets
from time import perf_counter_ns

from fastapi import APIRouter, Request
from msgspec.structs import asdict
from starlette.responses import Response

from service.front.routes.answers import (
    EVENT_STREAM,
    GENERATION_ERRORS,
    GenerateAnswer,
    GenerateAnswers,
    Responses,
    body_schema,
)
from service.front.routes.body import BodyReader, read_generation
from service.front.routes.compare import CompareAnswer, compared
from service.front.routes.engine_call import check_limits, check_sample, new_job, respond
from service.front.routes.state import state_of
from service.front.schemas import CompareBody, GenerateBody
from service.modes import AUTO

router = APIRouter(tags=["generation"])
_generate_body = BodyReader(GenerateBody, "prompts")

RESPONSES: Responses = {200: {"model": GenerateAnswer, "content": {EVENT_STREAM: {}}}, **GENERATION_ERRORS}


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
    state.check_mode(mode, beside=(AUTO,))
    body = await read_generation(request, state, _generate_body)
    received_ns = perf_counter_ns()
    check_limits(state, body.prompts, body.max_new_tokens)
    check_sample(state, body.sample, body.profile)
    request_id: str = request.state.request_id
    asked = state.asked(mode, len(body.prompts))
    request.state.mode = asked.mode
    job = new_job(state, request_id, received_ns, mode=asked.mode, **asdict(body))
    answers = GenerateAnswers(state, request_id, asked)
    return await respond(state, request, job, received_ns, answers)


_compare_body = BodyReader(CompareBody, "prompts")


@router.post(
    "/compare",
    openapi_extra=body_schema(CompareBody),
    responses={200: {"model": CompareAnswer}, **GENERATION_ERRORS},
)
async def compare(request: Request) -> Response:
    """Run every mode once per round, in a fresh order each round, one after another.

    On a CPU each runs once more before that, sampled faster: its steps say how those of the others split.
    """
    state = state_of(request)
    body = await _compare_body.read(request, state)
    received_ns = perf_counter_ns()
    check_limits(state, body.prompts, body.max_new_tokens)
    # One seed for all, or sampled texts could not be compared.
    seed = secrets.randbelow(2**63) if body.seed is None and body.temperature > 0 else body.seed
    fields = {**body.model_dump(exclude={"modes", "repeats"}), "seed": seed}
    return await compared(request, received_ns, len(body.prompts), body.modes, body.repeats, **fields)
