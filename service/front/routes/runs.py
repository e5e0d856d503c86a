"""`/v1/runs`: the sweeps under the results folder, their reports, and two of them compared."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.errors import LaunchboundError, NotFound
from service.front.routes.answers import ACCESS_ERRORS, BODY_ERRORS, body_schema, error, reply
from service.front.routes.body import BodyReader
from service.front.routes.engine_call import unless_gone
from service.front.routes.state import state_of
from service.parent_death import owned


class RunBody(TypedDict):
    """One sweep, from its own files; null is what they do not have."""

    name: str
    started: str | None
    complete: bool | None
    preset: str | None
    model: str | None
    device_name: str | None
    commit: str | None
    valid: bool | None
    headline: str | None
    has_report: bool
    problem: str | None


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
    """The sweeps under LAUNCHBOUND_RESULTS_FOLDER, newest first, those of fleets too."""
    results = state_of(request).settings.results_folder
    found = [_described(folder, name) for name, folder in _sweeps(results).items()]
    found.sort(key=lambda run: (run["started"] or "", run["name"]), reverse=True)
    return reply({"folder": results.name, "runs": found})


@router.get("/runs/{name:path}/report", responses={200: {"content": {"text/html": {}}}, **NO_RUN})
def report(name: str, request: Request) -> Response:
    """The page of a sweep's report, in a sandbox: its scripts cannot call this service."""
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    try:
        page = (_folder(request, name) / REPORT_FILE).read_bytes()
    except FileNotFoundError:
        message = f"the sweep '{name}' has no report yet: run `launchbound report` on its folder"
        raise NotFound(message, type="no_report", param="name") from None
    return Response(page, headers=headers, media_type="text/html")


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
    },
)
async def compare(request: Request) -> Response:
    """The document of `launchbound compare` for two sweeps. A hang-up ends it."""
    state = state_of(request)
    body = await _body.read(request, state)
    before, after = (_folder(request, name) for name in (body.before, body.after))
    state.studies.sweeps.refuse("a comparison of sweeps")
    found = await unless_gone(request.receive, compare_runs(state.comparing, before, after, body.force))
    return Response(found, media_type="application/json")


RUN_FILE, FLEET_FILE, REPORT_FILE, MARKDOWN_FILE, VALIDATION_FILE = (
    "run.json", "fleet.json", "report.html", "report.md", "validation.json",
)  # fmt: skip
"""Of a sweep's folder, as docs/sweeps.md describes it."""


class _Plan(TypedDict, total=False):
    preset: str | None


class _Environment(TypedDict, total=False):
    commit: str | None


class _Engine(TypedDict, total=False):
    model: str | None
    device_name: str | None


class _Run(msgspec.Struct, frozen=True):
    """What is read of `run.json`; it has far more."""

    started: str | None = None
    complete: bool | None = None
    plan: _Plan = {}
    environment: _Environment = {}
    engine: _Engine | None = None


def _sweeps(results: Path) -> dict[str, Path]:
    """By name: the folders with a `run.json` in `results`, or in a folder with a `fleet.json` there.

    A sweep of such a fleet is named `FLEET/TASK`.
    """
    found: dict[str, Path] = {}
    for folder in results.iterdir() if results.is_dir() else ():
        inner = folder.iterdir() if (folder / FLEET_FILE).is_file() else ()
        sweeps = (one for one in (folder, *inner) if (one / RUN_FILE).is_file())
        found |= {one.relative_to(results).as_posix(): one for one in sweeps}
    return found


def _folder(request: Request, name: str) -> Path:
    """The folder of one sweep: one of those that there are, so that no name leads elsewhere."""
    sweeps = _sweeps(state_of(request).settings.results_folder)
    if name not in sweeps:
        raise NotFound(f"no sweep '{name[:64]}' here: GET /v1/runs lists those that there are", param="name")
    return sweeps[name]


def _described(folder: Path, name: str) -> RunBody:
    problem, run, valid = None, _Run(), None
    try:
        run = msgspec.json.decode((folder / RUN_FILE).read_bytes(), type=_Run)
        checked = folder / VALIDATION_FILE
        if checked.is_file():
            valid = bool(msgspec.json.decode(checked.read_bytes(), type=dict[str, Any])["passed"])
    except (OSError, msgspec.DecodeError, KeyError) as error:
        problem = f"cannot be read: {error}"
    engine = run.engine or {}
    return {
        "name": name,
        "started": run.started,
        "complete": run.complete,
        "preset": run.plan.get("preset"),
        "model": engine.get("model"),
        "device_name": engine.get("device_name"),
        "commit": run.environment.get("commit"),
        "valid": valid,
        "headline": _headline(folder / MARKDOWN_FILE),
        "has_report": (folder / REPORT_FILE).is_file(),
        "problem": problem,
    }


def _headline(path: Path) -> str | None:
    """The first line of `report.md`, which is the answer; None without one."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", errors="replace") as lines:
        return lines.readline().strip().removeprefix("# ") or None


COMMAND = (sys.executable, "-m", "launchbound", "compare", "--json")

EXIT_BAD_INPUT = 2


class ComparisonBusy(LaunchboundError, status=409, type="comparison_busy"):
    """Two sweeps are being compared; it is done one pair at a time."""


class NotComparable(LaunchboundError, status=422, type="not_comparable"):
    """`launchbound compare` refuses these two sweeps; the message is its own."""


async def compare_runs(lock: asyncio.Lock, before: Path, after: Path, force: bool) -> bytes:
    """The document of `launchbound compare`, its sides by name, from a process of its own, one at a time.

    Cancelled, it ends the process. Raises ComparisonBusy, NotComparable, or LaunchboundError where it fails.
    """
    if lock.locked():
        message = "another comparison is under way; they run one at a time"
        raise ComparisonBusy(message, retry_after_seconds=5)
    async with lock:
        options = ["--force"] if force else []
        process = await asyncio.create_subprocess_exec(
            *owned((*COMMAND, *options, "--", str(before), str(after))),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:  # cancelled
                process.kill()
                await process.wait()
    if process.returncode == 0:
        return _named(output, before, after)
    message = (errors.decode(errors="replace").strip().splitlines() or ["it gave no reason"])[-1]
    if process.returncode == EXIT_BAD_INPUT:
        raise NotComparable(message.removeprefix("launchbound: "))
    raise LaunchboundError(f"launchbound compare ended with {process.returncode}: {message}")


def _named(output: bytes, before: Path, after: Path) -> bytes:
    document = msgspec.json.decode(output)
    for side, folder in (("before", before), ("after", after)):
        document[side]["path"] = folder.name
    return msgspec.json.encode(document)
