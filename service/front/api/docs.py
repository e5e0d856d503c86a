"""`GET /docs`: the OpenAPI document as a page, made of files that lie here: no network, no foreign script."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import FileResponse, Response

from service.front.api.answers import reply
from service.front.api.document import describe
from service.front.api.state import state_of
from service.front.errors import NotFound

FOLDER = Path(__file__).parents[1] / "swagger"
FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "start.js": "text/javascript",
}

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts of this service alone; the page's own styles are set by its script."""

router = APIRouter(include_in_schema=False)


@router.get("/openapi.json")
async def document(request: Request) -> Response:
    """The OpenAPI document. The first call makes it, which takes long: not on the event loop."""
    app: FastAPI = request.app
    made = app.openapi_schema
    return reply(made or await asyncio.to_thread(describe, app, state_of(request).settings))


@router.get("/docs")
async def page() -> FileResponse:
    """The page."""
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
    return FileResponse(FOLDER / "index.html", headers=headers, media_type="text/html")


@router.get("/docs/{name}")
async def file(name: str) -> FileResponse:
    """A file of the page."""
    if name not in FILES:
        raise NotFound(f"no file '{name[:64]}' here; /docs is the page", param="name")
    return FileResponse(FOLDER / name, media_type=FILES[name])
