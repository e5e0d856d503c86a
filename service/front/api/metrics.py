"""`GET /metrics`: an explicit route, as a mounted app answers 307 and Prometheus then stores nothing."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.state import state_of

router = APIRouter(tags=["metrics"])


@router.get("/metrics", responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}})
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
