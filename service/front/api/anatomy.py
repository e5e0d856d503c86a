"""`GET /v1/modes/{mode}/anatomy` and `/v1/probes`: what one step does, and the live experiments."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive

from service.front.api.answers import encode_json, reply
from service.front.api.openapi import GENERATION_ERRORS, Responses, error
from service.front.api.state import AppState, state_of
from service.front.errors import BadRequest, ClientGone, NotFound
from service.front.schemas.probes import ProbeAnswer, ProbesAnswer
from service.protocol.probes import PROBES

router = APIRouter(tags=["anatomy"])

STUDY_ERRORS: Responses = {
    **{status: GENERATION_ERRORS[status] for status in (401, 404, 422, 504)},
    **error(409, "A sweep is in progress, or another study; see Retry-After."),
    **error(503, "The engine is not ready, or the anatomy process ended."),
}


@router.get("/modes/{mode}/anatomy", responses={200: {"model": dict[str, Any]}, **STUDY_ERRORS})
async def anatomy(
    mode: str, request: Request, batch_size: int = 1, phase: Literal["decode", "prefill"] = "decode"
) -> Response:
    """What one step of a mode does: operators, kernels, syncs, copies, and what its compiler made of it."""
    state = state_of(request)
    state.check_mode(mode)
    largest = max(state.settings.batch_sizes)
    if not 1 <= batch_size <= largest:
        raise BadRequest(
            f"batch_size lies between 1 and {largest} here, got {batch_size}", param="batch_size"
        )
    return await _study(
        state, request.receive, "operators", {"mode": mode, "batch_size": batch_size, "phase": phase}
    )


@router.get("/probes", responses={200: {"model": ProbesAnswer}})
async def probes() -> Response:
    """The probes by name, with what each teaches."""
    return reply({"probes": [{"name": name, "teaches": teaches} for name, teaches in PROBES.items()]})


@router.post("/probes/{name}", responses={200: {"model": ProbeAnswer}, **STUDY_ERRORS})
async def probe(name: str, request: Request) -> Response:
    """One pitfall, live: a step without and with it, the counter that moved, the line to blame, the cure."""
    if name not in PROBES:
        raise NotFound(f"no probe '{name[:64]}'; try one of {', '.join(PROBES)}", param="name")
    return await _study(state_of(request), request.receive, "probes", {"name": name})


async def _study(state: AppState, receive: Receive, name: str, arguments: dict[str, object]) -> Response:
    """The finding of a study as it came; a client that goes away ends it."""
    study = asyncio.create_task(state.studies.study(name, encode_json(arguments)))
    gone = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait({study, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not study.done():
            raise ClientGone("the client closed the connection")
        found = study.result()
    finally:
        gone.cancel()
        study.cancel()
        await asyncio.gather(study, return_exceptions=True)
    spent = ", ".join(f"{part};dur={seconds * 1000:.1f}" for part, seconds in found.seconds.items())
    return Response(found.body, headers={"Server-Timing": spent}, media_type="application/json")


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
