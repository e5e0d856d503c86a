"""`/v1/studies`: run a study by POST, and read its finding again; `GET …/anatomy` is the newest of a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import PurePath
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.types import Receive

from service.front.api.answers import encode_json, reply
from service.front.api.body import BodyReader
from service.front.api.openapi import BODY_ERRORS, NO_STUDY, STUDY_ERRORS, Responses, body_schema, error
from service.front.api.state import AppState, state_of
from service.front.api.study_arguments import bucket_of, check_served, in_buckets
from service.front.api.study_call import StudyCall
from service.front.api.study_stream import EVENT_STREAM, StudyStream, wants_events
from service.front.errors import NotFound
from service.front.findings import KeptFinding
from service.front.schemas.studies import STUDY_BODIES, StudyBody
from service.front.schemas.study_answers import StudiesAnswer
from service.front.study_result import StudyResult
from service.protocol.messages import Phase

router = APIRouter(tags=["anatomy"])

FINDING: Responses = {200: {"model": dict[str, Any]}}
STUDY: Responses = {
    200: {"model": dict[str, Any], "content": {EVENT_STREAM: {}}},
    **STUDY_ERRORS,
    **BODY_ERRORS,
    **error(429, "Too many unfinished requests for another large body; see Retry-After."),
}
FILE_KINDS = {".gz": "application/gzip"}
"""By suffix; a browser opens no file of any other kind by itself."""

ANY_FILE = "application/octet-stream"
FILE: Responses = {200: {"content": {kind: {} for kind in (*FILE_KINDS.values(), ANY_FILE)}}}

DESCRIPTION = """{about}

The engine is paused meanwhile. The answer is the finding, and `Location` is where it can be read again. With
`Accept: text/event-stream` it comes as events: `progress` ({{message, done, total}}), then one `finding`
({{id, study, arguments, created, finding}}) or `error`. To hang up ends the study.
"""


def _route(name: str, schema: type[StudyBody]) -> Callable[[Request], Awaitable[Response]]:
    """The route of one study."""
    reader = BodyReader(schema)

    async def run(request: Request) -> Response:
        state = state_of(request)
        body = await reader.read(request, state)
        return await _run(state, request, name, body)

    return run


for _name, _schema in STUDY_BODIES.items():
    router.add_api_route(
        f"/studies/{_name}",
        _route(_name, _schema),
        methods=["POST"],
        name=f"run_{_name}",
        description=DESCRIPTION.format(about=_schema.__doc__),
        openapi_extra=body_schema(_schema),
        responses=STUDY,
    )


@router.get("/studies", responses={200: {"model": StudiesAnswer}})
async def studies(request: Request) -> Response:
    """The findings that can be read again, newest first."""
    findings = state_of(request).findings
    answer: StudiesAnswer = {
        "studies": [
            {
                "id": kept.id,
                "study": kept.study,
                "arguments": kept.arguments,
                "created": kept.created,
                "files": list(kept.files),
                "files_left_out": dict(kept.files_left_out),
            }
            for kept in findings
        ],
        "given_up": findings.given_up,
    }
    return reply(answer)


@router.get("/studies/{identity}", responses={**FINDING, **NO_STUDY})
async def study(identity: str, request: Request) -> Response:
    """One finding."""
    return _answer(state_of(request).findings.by_id(identity))


@router.get("/studies/{identity}/files/{name}", responses={**FILE, **NO_STUDY}, response_class=Response)
async def file(identity: str, name: str, request: Request) -> Response:
    """A file that a study wrote: the trace of `timeline`, for Perfetto, or CUDA's snapshot of `memory`."""
    found = state_of(request).findings.file(identity, name)
    headers = {"Content-Disposition": f'attachment; filename="{identity}-{name}"'}
    kind = FILE_KINDS.get(PurePath(name).suffix, ANY_FILE)
    return Response(found, headers=headers, media_type=kind)


@router.post("/studies/{name}", include_in_schema=False)
async def run_other(name: str) -> Response:
    """No such study; the error names those there are."""
    raise NotFound(f"no study '{name[:64]}'; try one of {', '.join(STUDY_BODIES)}", param="name")


@router.get(
    "/modes/{mode}/anatomy",
    responses={**FINDING, **NO_STUDY, **error(422, "The batch size or the phase cannot be.")},
)
async def anatomy(mode: str, request: Request, batch_size: int = 1, phase: Phase = "decode") -> Response:
    """The newest finding of POST /v1/studies/operators for this step; it runs nothing."""
    state = state_of(request)
    state.check_mode(mode)
    arguments = {"mode": mode, "batch_size": bucket_of(state, batch_size), "phase": phase}
    kept = state.findings.newest("operators", arguments)
    if kept is None:
        message = f"nothing has been found of this step yet: POST {encode_json(arguments).decode()} to"
        raise NotFound(f"{message} /v1/studies/operators, which pauses the engine for it", type="not_studied")
    return _answer(kept, {"Content-Location": f"/v1/studies/{kept.id}"})


async def run_study(
    state: AppState, receive: Receive, name: str, arguments: Mapping[str, Any]
) -> StudyResult:
    """Run a study; a client that goes away ends it."""
    async with StudyCall(state, receive, name, arguments) as call:
        return await call.result()


def spent(found: StudyResult) -> str:
    """What the study took, for the `Server-Timing` header."""
    return ", ".join(f"{part};dur={seconds * 1000:.1f}" for part, seconds in found.seconds.items())


async def _run(state: AppState, request: Request, name: str, body: StudyBody) -> Response:
    """Run a study, as events where the client asks for them."""
    check_served(state, body)
    given = in_buckets(state, body.given)

    def call(receive: Receive) -> StudyCall:
        return StudyCall(state, receive, name, body.arguments(given), body.writes_files)

    def keep(found: StudyResult) -> KeptFinding:
        return state.findings.keep(name, given, found.body, found.files, found.files_left_out)

    if wants_events(request):
        return StudyStream(call, keep)
    async with call(request.receive) as running:
        found = await running.result()
    kept = keep(found)
    return _answer(kept, {"Server-Timing": spent(found), "Location": f"/v1/studies/{kept.id}"})


def _answer(kept: KeptFinding, headers: dict[str, str] | None = None) -> Response:
    return Response(kept.body, headers=headers, media_type="application/json")
