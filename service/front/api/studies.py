"""`/v1/studies`: run a study by POST, and read its finding again; `GET …/anatomy` is the newest of a step."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive

from service.front.api.answers import encode_json, reply
from service.front.api.body import BodyReader
from service.front.api.openapi import BODY_ERRORS, NO_STUDY, STUDY_ERRORS, Responses, body_schema, error
from service.front.api.state import AppState, state_of
from service.front.errors import BadRequest, ClientGone, NotFound
from service.front.findings import KeptFinding
from service.front.schemas.studies import OperatorsBody, StudiesAnswer
from service.front.study_runner import StudyResult

router = APIRouter(tags=["anatomy"])
_body = BodyReader(OperatorsBody)

FINDING: Responses = {200: {"model": dict[str, Any]}}


@router.post(
    "/studies/operators",
    openapi_extra=body_schema(OperatorsBody),
    responses={
        **FINDING,
        **STUDY_ERRORS,
        **BODY_ERRORS,
        **error(429, "Too many unfinished requests for another large body; see Retry-After."),
    },
)
async def run_operators(request: Request) -> Response:
    """List what one step of a mode does: operators, kernels, syncs, copies, and what its compiler made of it.

    The engine is paused meanwhile. The answer is the finding; `Location` is where it can be read again.
    """
    state = state_of(request)
    body = await _body.read(request, state)
    arguments = _step(state, body.mode, body.batch_size, body.phase)
    found = await run_study(state, request.receive, "operators", arguments)
    kept = state.findings.keep("operators", arguments, found.body)
    return _answer(kept, {"Server-Timing": spent(found), "Location": f"/v1/studies/{kept.id}"})


@router.get("/studies", responses={200: {"model": StudiesAnswer}})
async def studies(request: Request) -> Response:
    """The findings that can be read again, newest first."""
    answer: StudiesAnswer = {
        "studies": [
            {"id": kept.id, "study": kept.study, "arguments": dict(kept.arguments), "created": kept.created}
            for kept in state_of(request).findings
        ]
    }
    return reply(answer)


@router.get("/studies/{identity}", responses={**FINDING, **NO_STUDY})
async def study(identity: str, request: Request) -> Response:
    """One finding."""
    kept = state_of(request).findings.by_id(identity)
    if kept is None:
        raise NotFound(f"no finding '{identity[:64]}': GET /v1/studies lists those that are kept", param="id")
    return _answer(kept)


@router.post("/studies/{name}", include_in_schema=False)
async def run_other(name: str) -> Response:
    """The other studies are not served; the error names what is."""
    raise NotFound(
        f"no study '{name[:64]}' is served: POST /v1/studies/operators, or run `launchbound anatomy --help`",
        param="name",
    )


@router.get(
    "/modes/{mode}/anatomy",
    responses={**FINDING, **NO_STUDY, **error(422, "The batch size or the phase cannot be.")},
)
async def anatomy(
    mode: str, request: Request, batch_size: int = 1, phase: Literal["decode", "prefill"] = "decode"
) -> Response:
    """The newest finding of POST /v1/studies/operators for this step; it runs nothing."""
    state = state_of(request)
    arguments = _step(state, mode, batch_size, phase)
    kept = state.findings.newest("operators", arguments)
    if kept is None:
        message = f"nothing has been found of this step yet: POST {encode_json(arguments).decode()} to"
        raise NotFound(f"{message} /v1/studies/operators, which pauses the engine for it", type="not_studied")
    return _answer(kept, {"Content-Location": f"/v1/studies/{kept.id}"})


async def run_study(
    state: AppState, receive: Receive, name: str, arguments: dict[str, str | int]
) -> StudyResult:
    """Run a study; a client that goes away ends it."""
    running = asyncio.create_task(state.studies.study(name, encode_json(arguments)))
    gone = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientGone("the client closed the connection")
        return running.result()
    finally:
        gone.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def spent(found: StudyResult) -> str:
    """What the study took, for the `Server-Timing` header."""
    return ", ".join(f"{part};dur={seconds * 1000:.1f}" for part, seconds in found.seconds.items())


def _step(state: AppState, mode: str, batch_size: int, phase: str) -> dict[str, str | int]:
    """A step as the studies know it: its batch is a bucket. Raises UnknownMode or BadRequest."""
    state.check_mode(mode)
    buckets = state.settings.batch_sizes
    if not 1 <= batch_size <= buckets[-1]:
        raise BadRequest(
            f"batch_size lies between 1 and {buckets[-1]} here, got {batch_size}", param="batch_size"
        )
    bucket = min(size for size in buckets if size >= batch_size)
    return {"mode": mode, "batch_size": bucket, "phase": phase}


def _answer(kept: KeptFinding, headers: dict[str, str] | None = None) -> Response:
    return Response(kept.body, headers=headers, media_type="application/json")


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
