"""`GET /v1/traces`: profiled requests, and their traces for Perfetto."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.api.answers import reply
from service.front.api.openapi import error
from service.front.api.state import state_of
from service.front.errors import NotFound

router = APIRouter(tags=["traces"])

SAFE_NAME = re.compile(r"[\w.-]{1,128}")


def _folder(request: Request) -> Path:
    return state_of(request).settings.cache_folder / "traces"


@router.get("/traces")
def traces(request: Request) -> Response:
    """The newest profiled requests, newest first, with their operators' self times."""
    notes: list[dict[str, Any]] = []
    for path in _folder(request).glob("*.json"):
        try:
            notes.append(json.loads(path.read_text()))
        except FileNotFoundError:
            # The engine keeps only the newest and may have removed it since it was listed.
            continue
    return reply({"traces": sorted(notes, key=lambda note: float(note["created"]), reverse=True)})


@router.get("/traces/{identity}", responses=error(404, "No trace of this name, or no longer kept."))
def trace(identity: str, request: Request) -> Response:
    """One trace in the Chrome format: open it at ui.perfetto.dev."""
    unknown = NotFound(f"no trace '{identity}': GET /v1/traces lists those that are kept", param="identity")
    if not SAFE_NAME.fullmatch(identity):
        raise unknown
    try:
        packed = (_folder(request) / f"{identity}.trace.json.gz").read_bytes()
    except FileNotFoundError:
        # Never there, or no longer among the newest.
        raise unknown from None
    return Response(gzip.decompress(packed), media_type="application/json")
