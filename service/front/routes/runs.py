"""`/v1/runs`: the sweeps under the results folder, their reports, and two of them compared."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.routes.answers import ACCESS_ERRORS, BODY_ERRORS, body_schema, error, reply
from service.front.routes.body import BodyReader
from service.front.routes.engine_call import unless_gone
from service.front.routes.state import state_of
from service.front.runs import ResultsFolder, RunBody


class RunsAnswer(TypedDict):
    """Answer of GET /v1/runs, newest first; `folder` is the name of the results folder."""

    folder: str
    runs: list[RunBody]


class CompareRunsBody(BaseModel):
    """POST /v1/runs/compare: two sweeps of GET /v1/runs by name."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    before: str = Field(min_length=1, max_length=511)
    after: str = Field(min_length=1, max_length=511, description="The sweep of the build to be judged.")
    force: bool = Field(default=False, description="Compare unlike runs too, and say what differs.")


POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report draws itself by scripts within the page: they run apart from this service and reach nothing."""

router = APIRouter(tags=["runs"])
_body = BodyReader(CompareRunsBody)

NO_RUN = error(404, "No such sweep, or it has no report; `message` has the remedy.")


@router.get("/runs", responses={200: {"model": RunsAnswer}})
def runs(request: Request) -> Response:
    """The sweeps under LAUNCHBOUND_RESULTS_FOLDER, newest first; a series has one per precision."""
    results = _results(request)
    answer: RunsAnswer = {"folder": results.path.name, "runs": results.runs()}
    return reply(answer)


@router.get("/runs/{name:path}/report", responses={200: {"content": {"text/html": {}}}, **NO_RUN})
def report(name: str, request: Request) -> Response:
    """The page of a sweep's report, in a sandbox: its scripts cannot call this service."""
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return Response(_results(request).report(name), headers=headers, media_type="text/html")


@router.post(
    "/runs/compare",
    openapi_extra=body_schema(CompareRunsBody),
    responses={
        200: {"model": dict[str, Any]},
        **ACCESS_ERRORS,
        **BODY_ERRORS,
        **NO_RUN,
        **error(409, "A sweep is in progress, or another comparison; see Retry-After."),
        **error(422, "The body cannot be, or the two cannot be compared; `message` has the reason."),
        **error(429, "Too many unfinished requests for another large body; see Retry-After."),
    },
)
async def compare(request: Request) -> Response:
    """The document of `launchbound compare` for two sweeps. A hang-up ends it."""
    state = state_of(request)
    body = await _body.read(request, state)
    results = _results(request)
    before, after = (results.folder(name) for name in (body.before, body.after))
    state.studies.sweeps.refuse("a comparison of sweeps")
    found = await unless_gone(request.receive, state.comparison.compare(before, after, body.force))
    return Response(found, media_type="application/json")


def _results(request: Request) -> ResultsFolder:
    return ResultsFolder(state_of(request).settings.results_folder)
