"""`/health/live` and `/health/ready`: 200, or 503 with the reason; `/metrics`: what Prometheus scrapes.

Without the key, where one is set, reasons are in fixed words, as they may contain paths and exceptions.
"""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.access import has_key
from service.front.errors import Unavailable
from service.front.routes.answers import error, reply
from service.front.routes.state import AppState, state_of
from service.records import ModeStatus


class LiveAnswer(TypedDict):
    """Answer of GET /health/live; `engine` is "up", or why there is none."""

    status: Literal["live"]
    engine: str
    engine_doing: str | None
    engine_paused: bool
    anatomy: str | None


class ReadyAnswer(TypedDict):
    """Answer of GET /health/ready: the modes that serve, and by name why the others failed.

    `degraded` is empty where all serve; the reasons are told with the key.
    """

    status: Literal["ready"]
    modes: list[str]
    degraded: dict[str, str]


KEEPS_FAILING = "the engine keeps failing to start"
ASK = "with the API key, GET /v1/modes and this route have the reason"

NOT_SO = error(503, "Not so; the message has the reason.")

router = APIRouter()


@router.get("/health/live", tags=["health"], responses={**NOT_SO, 200: {"model": LiveAnswer}})
async def live(request: Request) -> Response:
    """200 while the front can do its work; 503 where it keeps failing to start an engine."""
    state = state_of(request)
    detailed = has_key(state.settings, request.scope)
    if (reason := state.supervisor.unhealthy_reason) is not None:
        raise Unavailable(reason if detailed else f"{KEEPS_FAILING}; {ASK}", type="unwell")
    up = state.client.engine is not None
    doing = state.studies.process.doing
    answer: LiveAnswer = {
        "status": "live",
        "engine": "up" if up else state.client.down_reason if detailed else "down",
        "engine_doing": state.client.doing.what if detailed and state.client.doing else None,
        "engine_paused": state.client.pause.held,
        "anatomy": doing if detailed or doing is None else "up",
    }
    return reply(answer)


@router.get(
    "/health",
    tags=["health"],
    operation_id="health",
    summary="The same as /health/ready, where vLLM has it: load generators request it first.",
    responses={**NOT_SO, 200: {"model": ReadyAnswer}},
)
@router.get("/health/ready", tags=["health"], responses={**NOT_SO, 200: {"model": ReadyAnswer}})
async def ready(request: Request) -> Response:
    """200 once nothing warms up any more, and every required mode is warm and in parity."""
    state = state_of(request)
    detailed = has_key(state.settings, request.scope)
    if (reason := obstacle(state, detailed)) is not None:
        raise reason
    degraded = {status.mode: status.detail or "" if detailed else ASK for status in _failed(state)}
    answer: ReadyAnswer = {"status": "ready", "modes": state.client.ready_modes(), "degraded": degraded}
    return reply(answer)


def missed(state: AppState) -> list[ModeStatus]:
    """The failed modes without which this service is not ready: the required ones, else all if all failed."""
    failed, required = _failed(state), state.settings.require_modes
    if required is None:
        return failed if len(failed) == len(state.client.configured) else []
    return [status for status in failed if status.mode in required]


def _failed(state: AppState) -> list[ModeStatus]:
    return [status for status in state.client.modes.values() if status.state == "failed"]


def obstacle(state: AppState, detailed: bool) -> Unavailable | None:
    """Why this service is not ready, with details only where `detailed`; None where it is."""
    client = state.client
    if client.draining:
        return Unavailable("the service is shutting down", type="draining")
    unwell = state.supervisor.unhealthy_reason
    if unwell is not None or client.engine is None:
        reason = unwell or client.down_reason
        return Unavailable(
            reason if detailed else f"{KEEPS_FAILING if unwell else 'the engine is down'}; {ASK}",
            type="unwell" if unwell else "engine_not_ready",
            retry_after_seconds=client.retry_after_seconds,
        )
    failed = [f"{status.mode} failed ({status.detail if detailed else ASK})" for status in missed(state)]
    waiting = [f"{name} is {client.state(name)}" for name in client.warming()]
    if not client.engine.warm and not waiting:
        waiting = ["the engine measures its steps for the first time"]
    if not failed and not waiting:
        return None
    ready_now = f"ready: {', '.join(client.ready_modes()) or 'none yet'}"
    return Unavailable("; ".join([*failed, *waiting, ready_now]), type="not_ready")


# A route of its own: a mounted app answers 307, and Prometheus then stores nothing.
@router.get(
    "/metrics",
    tags=["metrics"],
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """Prometheus text, or OpenMetrics where the Accept header requests it.

    It may be up to a second old, unless the request says `Cache-Control: no-cache`.
    """
    state = state_of(request)
    state.observe_all()
    client = state.client
    accept = request.headers.get("accept", "")
    fresh = "no-cache" in request.headers.get("cache-control", "")
    body, content_type = state.metrics.render(accept, client.in_progress(), client.waiting(), fresh)
    return Response(body, headers={"Content-Type": content_type})
