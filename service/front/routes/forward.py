"""`POST /v1/modes/{mode}/forward`: calls of the served module in one mode; `POST /v1/compare`: in several."""

from __future__ import annotations

from time import perf_counter_ns

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.errors import BadRequest
from service.front.routes.answers import (
    GENERATION_ERRORS,
    ForwardAnswer,
    Responses,
    body_schema,
    forward_answer,
)
from service.front.routes.body import BodyReader
from service.front.routes.compare import CompareAnswer, compared
from service.front.routes.engine_call import answer_once, check_sample, new_job
from service.front.routes.state import AppState, state_of
from service.front.schemas import MAX_PROFILED_CALLS, CompareForwardBody, ForwardBody
from service.modes import AUTO
from service.records import ForwardWork

router = APIRouter(tags=["forward"])
_forward_body = BodyReader(ForwardBody, as_sent="inputs")
_compare_body = BodyReader(CompareForwardBody)

RESPONSES: Responses = {200: {"model": ForwardAnswer}, **GENERATION_ERRORS}


# Before the other route, which would take `auto` for a mode; entered directly, both are `forward`.
@router.post(
    f"/modes/{AUTO}/forward",
    operation_id="forward_auto",
    openapi_extra=body_schema(ForwardBody),
    responses=RESPONSES,
)
async def forward_auto(request: Request) -> Response:
    """Call the module in the mode that is advised for the batch size; the answer names it with the reason."""
    return await forward(AUTO, request)


@router.post(
    "/modes/{mode}/forward",
    operation_id="forward",
    openapi_extra=body_schema(ForwardBody),
    responses=RESPONSES,
)
async def forward(mode: str, request: Request) -> Response:
    """Call the module in one mode, and report where the time went, from when the body is parsed."""
    state = state_of(request)
    state.check_mode(mode, beside=(AUTO,))
    body = await _forward_body.read(request, state)
    received_ns = perf_counter_ns()
    work = _work_of(state, body)
    check_sample(state, body.sample, body.profile)
    request_id: str = request.state.request_id
    asked = state.asked(mode, work.batch_size)
    request.state.mode = asked.mode
    job = new_job(
        state,
        request_id,
        received_ns,
        mode=asked.mode,
        forward=work,
        profile=body.profile,
        sample=body.sample,
    )
    return await answer_once(
        state, request, job, received_ns, lambda timing: forward_answer(state, request_id, asked, timing)
    )


def _work_of(state: AppState, body: ForwardBody) -> ForwardWork:
    """Raises BadRequest where fields exclude each other, or for a batch size that is not served here."""
    given = body.model_fields_set
    if body.inputs is None and "batch_size" not in given:
        raise BadRequest("batch_size: send it, or inputs in its place", param="batch_size")
    if body.inputs is not None and (needless := given & {"batch_size", "seed"}):
        param = min(needless)
        raise BadRequest(f"{param}: leave it out where inputs are sent", param=param)
    if body.profile and body.calls > MAX_PROFILED_CALLS:
        message = f"calls: a profiled request takes up to {MAX_PROFILED_CALLS}, got {body.calls}"
        raise BadRequest(message, param="calls")
    batch_size = body.batch_size if body.inputs is None else rows_of(body.inputs)
    param = "batch_size" if body.inputs is None else "inputs"
    return ForwardWork(
        batch_size=state.bucket_of(batch_size, param),
        seed=body.seed,
        calls=body.calls,
        inputs=body.inputs,
        outputs=body.outputs,
    )


_arguments = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])
_rows = msgspec.json.Decoder(list[msgspec.Raw])


def rows_of(inputs: bytes) -> int:
    """The batch size of `inputs`: the first dimension of the first tensor that has one.

    What lies deeper is not decoded here: the engine alone knows shapes and dtypes. Raises BadRequest.
    """
    try:
        arguments = _arguments.decode(inputs)
    except msgspec.ValidationError:
        message = "inputs: send a list (positional arguments) or an object (by name) of nested lists"
        raise BadRequest(message, param="inputs") from None
    given = arguments.values() if isinstance(arguments, dict) else arguments
    first = next((raw for raw in given if bytes(raw).startswith(b"[")), None)
    if first is None:
        message = "inputs: none of them is a list, whose length is the batch size"
        raise BadRequest(message, param="inputs")
    return len(_rows.decode(first))


@router.post(
    "/compare",
    openapi_extra=body_schema(CompareForwardBody),
    responses={200: {"model": CompareAnswer}, **GENERATION_ERRORS},
)
async def compare(request: Request) -> Response:
    """Call the module in every mode once per round, in a fresh order each round, one after another.

    On a CPU each runs once more before that, sampled faster: its steps say how those of the others split.
    Speed-ups are of the calls alone, without HTTP.
    """
    state = state_of(request)
    body = await _compare_body.read(request, state)
    received_ns = perf_counter_ns()
    batch_size = state.bucket_of(body.batch_size)
    work = ForwardWork(batch_size=batch_size, seed=body.seed, calls=body.calls)
    return await compared(request, received_ns, batch_size, body.modes, body.repeats, forward=work)
