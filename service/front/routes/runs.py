"""`/v1/runs`: the sweeps under the results folder, and their reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.errors import NotFound
from service.front.routes.answers import Responses, error, reply
from service.front.routes.state import state_of


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


POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';"
    " img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""A report draws itself by scripts within the page: they run apart from this service and reach nothing."""

router = APIRouter(tags=["runs"])

NO_RUN = error(404, "No such sweep, or it has no report; `message` has the remedy.")


@router.get("/runs", responses={200: {"model": RunsAnswer}})
def runs(request: Request) -> Response:
    """The sweeps under LAUNCHBOUND_RESULTS_FOLDER, newest first, those of fleets too."""
    results = state_of(request).settings.results_folder
    found = [_described(folder, name) for name, folder in _sweeps(results).items()]
    found.sort(key=lambda run: (run["started"] or "", run["name"]), reverse=True)
    return reply({"folder": results.name, "runs": found})


PAGE: Responses = {200: {"content": {"text/html": {}}}}


@router.get("/runs/{name:path}/report", responses={**PAGE, **NO_RUN}, response_class=Response)
def report(name: str, request: Request) -> Response:
    """The page of a sweep's report, in a sandbox: its scripts cannot call this service."""
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    try:
        page = (_folder(request, name) / REPORT_FILE).read_bytes()
    except FileNotFoundError:
        message = f"the sweep '{name}' has no report yet: run `launchbound report` on its folder"
        raise NotFound(message, type="no_report", param="name") from None
    return Response(page, headers=headers, media_type="text/html")


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
