"""`GET /v1/advice?batch_size=N`: the mode to use, from what this instance has measured."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.answers import reply, speedup
from service.front.api.openapi import error
from service.front.api.state import state_of
from service.front.errors import BadRequest
from service.front.schemas.answers import AdviceAnswer

router = APIRouter(tags=["advice"])


@router.get(
    "/advice",
    responses={
        200: {"model": AdviceAnswer},
        **error(409, "Too few measurements; `message` names what to run."),
        **error(422, "The batch size is out of range."),
    },
)
async def advice(request: Request, batch_size: int = 1) -> Response:
    """The best mode for a batch size, with the reason; 409 with what to run where too little is known."""
    state = state_of(request)
    if unknown := [name for name in request.query_params if name != "batch_size"]:
        message = f"{unknown[0][:64]}: there is no such parameter; write batch_size"
        raise BadRequest(message, param="batch_size")
    largest = max(state.settings.batch_sizes)
    if not 1 <= batch_size <= largest:
        raise BadRequest(
            f"batch_size lies between 1 and {largest} here, got {batch_size}", param="batch_size"
        )
    state.observe_all()
    found = state.statistics.advise(batch_size, state.settings.batch_sizes, state.client.ready_modes())
    answer: AdviceAnswer = {
        "batch_size": batch_size,
        "mode": found.mode,
        "reason": found.reason,
        "bound": found.bound and found.bound.removesuffix("-bound"),
        "device_bound_index": found.index,
        "crossover_batch": found.crossover,
        "speedup": speedup(found.speedup),
        "samples": found.samples,
    }
    return reply(answer)
