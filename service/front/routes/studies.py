"""`/v1/studies`: run a study by POST, and read its finding again; `/v1/probes`: the live experiments."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import TypedDict

from service.front.errors import BadRequest, ClientGone, LaunchboundError, NotFound, WrongWorkload
from service.front.routes.answers import (
    BODY_ERRORS,
    EVENT_STREAM,
    NO_STUDY,
    STUDY_ERRORS,
    EventAnswer,
    Responses,
    body_schema,
    encode_json,
    error,
    event,
    reply,
)
from service.front.routes.body import BodyReader
from service.front.routes.engine_call import unless_gone
from service.front.routes.problems import refuse
from service.front.routes.state import AppState, state_of
from service.front.schemas import STUDY_BODIES, StudyBody
from service.front.study_runner import Heard, KeptFinding, StudyResult, unheard
from service.records import Phase
from service.study_names import OF_MODULES, PROBES, not_of_modules


class StudyProgressEvent(TypedDict):
    """Data of a `progress` event: what the study does now; `done` of `total` alike parts are finished."""

    message: str
    done: int | None
    total: int | None


class StudyEntry(TypedDict):
    """A finding that can be read again; its `files` can be downloaded by name."""

    id: str
    study: str
    arguments: dict[str, Any]
    created: str
    files: list[str]


class StudiesAnswer(TypedDict):
    """Answer of GET /v1/studies, newest first; the oldest findings are dropped for newer ones."""

    studies: list[StudyEntry]


router = APIRouter(tags=["anatomy"])

of_language_models = APIRouter(tags=["anatomy"])
"""Studies that refuse a module; to be included before `router`, which takes any other name."""

FINDING: Responses = {200: {"model": dict[str, Any]}}
STUDY: Responses = {
    200: {"model": dict[str, Any], "content": {EVENT_STREAM: {}}},
    **STUDY_ERRORS,
    **BODY_ERRORS,
    **error(429, "Too many unfinished requests for another large body; see Retry-After."),
}
MOST_REPORTS = 100
"""Kept for a client that does not read them; the oldest are given up."""

HEARTBEAT_SECONDS = 10.0
"""The longest silence: proxies and clients take a longer one for the end."""

HEARTBEAT = b": the study goes on\n\n"
"""A comment, which clients skip."""

FILE_KIND = "application/octet-stream"
"""A browser opens no such file by itself."""

FILE: Responses = {200: {"content": {FILE_KIND: {}}}}

DESCRIPTION = """{about}

The engine is paused meanwhile. The answer is the finding, and `Location` is where it can be read again. With
`Accept: text/event-stream` it comes as events: `progress` ({{message, done, total}}), then one `finding`
({{id, study, arguments, created, finding}}) or `error`. To hang up ends the study.
"""


def _route(name: str, schema: type[StudyBody]) -> Callable[[Request], Awaitable[Response]]:
    reader = BodyReader(schema)

    async def run(request: Request) -> Response:
        state = _state_for(name, request)
        body = await reader.read(request, state)
        return await _run(state, request, name, body)

    return run


for _name, _schema in STUDY_BODIES.items():
    (router if _name in OF_MODULES else of_language_models).add_api_route(
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
    return reply({"studies": [{**_described(kept), "files": list(kept.result.files)} for kept in findings]})


@router.get("/studies/{identity}", responses={**FINDING, **NO_STUDY})
async def study(identity: str, request: Request) -> Response:
    """One finding."""
    return _answer(state_of(request).findings.by_id(identity))


@router.get("/studies/{identity}/files/{name}", responses={**FILE, **NO_STUDY}, response_class=Response)
async def file(identity: str, name: str, request: Request) -> Response:
    """A file that a study wrote: the trace of `timeline`, for Perfetto, or CUDA's snapshot of `memory`."""
    found = state_of(request).findings.file(identity, name)
    headers = {"Content-Disposition": f'attachment; filename="{identity}-{name}"'}
    return Response(found, headers=headers, media_type=FILE_KIND)


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
    arguments = {
        "mode": mode,
        "batch_size": state.bucket_of(batch_size),
        "phase": _phase(state, phase, "phase" in request.query_params),
    }
    kept = state.findings.newest("operators", arguments)
    if kept is None:
        message = f"nothing has been found of this step yet: POST {encode_json(arguments).decode()} to"
        raise NotFound(f"{message} /v1/studies/operators, which pauses the engine for it", type="not_studied")
    return _answer(kept, {"Content-Location": f"/v1/studies/{kept.id}"})


async def _run(state: AppState, request: Request, name: str, body: StudyBody) -> Response:
    """Run a study, as events where the client asks for them; a client that goes away ends it."""
    given = _checked(state, body)
    # A snapshot is written where there is a folder for it.
    arguments = {field: value for field, value in given.items() if field != "snapshot"}
    writes_files = name == "timeline" or given.get("snapshot", False)

    async def study(heard: Heard) -> KeptFinding:
        found = await state.studies.study(name, arguments, heard, writes_files)
        return state.findings.keep(name, given, found)

    if _wants_events(request):
        return StudyStream(study)
    kept = await unless_gone(request.receive, study(unheard))
    return _answer(kept, {"Server-Timing": _spent(kept.result), "Location": f"/v1/studies/{kept.id}"})


def _spent(found: StudyResult) -> str:
    return ", ".join(f"{part};dur={seconds * 1000:.1f}" for part, seconds in found.seconds.items())


def _answer(kept: KeptFinding, headers: dict[str, str] | None = None) -> Response:
    return Response(kept.result.body, headers=headers, media_type="application/json")


def _checked(state: AppState, body: StudyBody) -> dict[str, Any]:
    """The fields that are given, each batch size as its bucket. Raises UnknownMode or BadRequest."""
    given = body.model_dump(exclude_none=True)
    named = [(param, given[param]) for param in ("mode", "against") if param in given]
    for param, mode in (*named, *(("modes", mode) for mode in given.get("modes", ()))):
        state.check_mode(mode, param)
    if given.get("snapshot") and state.client.device == "cpu":
        message = "a snapshot is of CUDA's allocator, and this service runs on a CPU: leave it out"
        raise BadRequest(message, type="unsupported_here", param="snapshot")
    if "phase" in type(body).model_fields:
        given["phase"] = _phase(state, given["phase"], "phase" in body.model_fields_set)
    if "batch_size" in given:
        given["batch_size"] = state.bucket_of(given["batch_size"])
    if "batch_sizes" in given:
        given["batch_sizes"] = [state.bucket_of(size, "batch_sizes") for size in given["batch_sizes"]]
    return given


def _phase(state: AppState, phase: Phase, is_given: bool) -> Phase:
    """`phase`; where none is given, the main one of what is served. Raises BadRequest for another's."""
    try:
        return state.settings.workload.phase_of(phase if is_given else None)
    except ValueError as error:
        raise BadRequest(f"phase: {error}", param="phase") from None


def _state_for(study: str, request: Request) -> AppState:
    """Raises WrongWorkload where a module is served, and `study` is of language models."""
    state = state_of(request)
    if not state.settings.workload.tokens and (why := not_of_modules(study)):
        raise WrongWorkload(why)
    return state


def _wants_events(request: Request) -> bool:
    kinds = (kind.partition(";")[0].strip().lower() for kind in request.headers.get("accept", "").split(","))
    return EVENT_STREAM in kinds


def _described(kept: KeptFinding) -> dict[str, Any]:
    return {"id": kept.id, "study": kept.study, "arguments": kept.arguments, "created": kept.created}


class StudyStream(EventAnswer):
    """Runs `study` and streams it: `progress`, then exactly one `finding` or `error`.

    Until it is admitted, a failure is a plain error answer.
    """

    def __init__(self, study: Callable[[Heard], Coroutine[Any, Any, KeptFinding]]) -> None:
        super().__init__()
        self._study = study
        self._reports: deque[StudyProgressEvent] = deque(maxlen=MOST_REPORTS)
        self._reported = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            kept = await unless_gone(receive, self._run(send))
            last = event("finding", _described(kept) | {"finding": msgspec.Raw(kept.result.body)})
        except ClientGone:
            if not self.started:
                raise
            return
        except LaunchboundError as error:
            if not self.started:
                raise
            # The same problem, counted and logged alike, as without events.
            last = event("error", msgspec.Raw(bytes(refuse(Request(scope), error).body)))
        await self.send_events(send, last, last=True)

    async def _run(self, send: Send) -> KeptFinding:
        running = asyncio.create_task(self._study(self._heard))
        running.add_done_callback(lambda _: self._reported.set())
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._reported.wait(), HEARTBEAT_SECONDS)
                self._reported.clear()
                done = running.done()
                events = b"".join(event("progress", report) for report in self._reports)
                self._reports.clear()
                if events or not done:
                    await self.send_events(send, events or HEARTBEAT)
                if done:
                    return running.result()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def _heard(self, text: str, done: int | None, total: int | None) -> None:
        self._reports.append({"message": text, "done": done, "total": total})
        self._reported.set()


class ProbeName(TypedDict):
    """One live experiment, and what it teaches."""

    name: str
    teaches: str


class ProbesAnswer(TypedDict):
    """Answer of GET /v1/probes."""

    probes: list[ProbeName]


class ProbeSide(TypedDict):
    """Seconds of a step on one side of a probe: the median with its 95 % interval."""

    median_seconds: float
    low: float
    high: float


class ProbeCounter(TypedDict):
    """What a probe's fault moved."""

    name: str
    before: float
    after: float


ProbeAnswer = TypedDict(
    "ProbeAnswer",
    {
        "name": str,
        "without": ProbeSide,
        "with": ProbeSide,
        "counter": ProbeCounter,
        "blame": str,
        "cure": str,
    },
)
ProbeAnswer.__doc__ = "A step without and with the fault, the line to blame, the cure."

NAMES = Path(json_schema_extra={"enum": [*PROBES], "examples": ["hidden-copy"]})


@router.get("/probes", responses={200: {"model": ProbesAnswer}})
async def probes() -> Response:
    """The probes by name, with what each teaches."""
    listed = [{"name": name, "teaches": teaches} for name, teaches in PROBES.items()]
    return reply({"probes": listed})


@router.post("/probes/{name}", responses={200: {"model": ProbeAnswer}, **STUDY_ERRORS})
async def probe(name: Annotated[str, NAMES], request: Request) -> Response:
    """One pitfall, live: a step without and with it, the counter that moved, the line to blame, the cure."""
    if name not in PROBES:
        raise NotFound(f"no probe '{name[:64]}'; try one of {', '.join(PROBES)}", param="name")
    found = await unless_gone(request.receive, state_of(request).studies.study("probes", {"name": name}))
    return Response(found.body, headers={"Server-Timing": _spent(found)}, media_type="application/json")
