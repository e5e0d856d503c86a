"""`GET /v1/traces`: profiled requests, and their traces for Perfetto."""

from __future__ import annotations

import gzip
import json
import logging
import re
import zlib
from pathlib import Path
from typing import Any, NotRequired

from fastapi import APIRouter, Request
from starlette.responses import Response
from typing_extensions import TypedDict

from service.front.errors import NotFound
from service.front.routes.answers import error, reply
from service.front.routes.state import state_of


class TraceEntry(TypedDict):
    """A profiled request that is kept: `created` in seconds since 1970, `operators` by their self time.

    `id` is the trace's own, `request_id` the `X-Request-ID` of its request, which others may have had too.
    """

    id: str
    request_id: NotRequired[str]
    created: float
    mode: NotRequired[str]
    batch_size: NotRequired[int]
    steps: NotRequired[int]
    kernels_unknown: NotRequired[dict[str, int]]
    operators: NotRequired[list[dict[str, Any]]]


class TracesAnswer(TypedDict):
    """Answer of GET /v1/traces, newest first."""

    traces: list[TraceEntry]


router = APIRouter(tags=["traces"])

log = logging.getLogger("launchbound.api")

SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")


def _folder(request: Request) -> Path:
    return state_of(request).settings.cache_folder / "traces"


@router.get("/traces", responses={200: {"model": TracesAnswer}})
def traces(request: Request) -> Response:
    """The newest profiled requests, newest first, with their operators' self times."""
    return reply({"traces": _newest(_folder(request))})


def _newest(folder: Path) -> list[dict[str, Any]]:
    notes = []
    for path in folder.glob("*.json"):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            str(note["id"]), float(note["created"])
        except FileNotFoundError:
            # The engine keeps only the newest and may have removed it since it was listed.
            continue
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s is left out of the traces, as it cannot be read: %r; remove it", path, error)
            continue
        notes.append(note)
    return sorted(notes, key=lambda note: float(note["created"]), reverse=True)


@router.get(
    "/traces/{identity}",
    operation_id="read_trace",
    responses=error(404, "No trace of this name, or no longer kept."),
)
def trace(identity: str, request: Request) -> Response:
    """One trace in the Chrome format: open it at ui.perfetto.dev.

    Of a request's id it is the newest trace: clients may send the same one again.
    """
    unknown = NotFound(
        f"no trace '{identity[:128]}': GET /v1/traces lists those that are kept", param="identity"
    )
    if not SAFE_NAME.fullmatch(identity):
        raise unknown
    folder = _folder(request)
    if not (folder / f"{identity}.trace.json.gz").exists():
        of_request = (note for note in _newest(folder) if note.get("request_id") == identity)
        identity = str(next(of_request, {"id": identity})["id"])
    try:
        found = gzip.decompress((folder / f"{identity}.trace.json.gz").read_bytes())
        if not found:
            raise EOFError("it is empty")
    except FileNotFoundError:
        # Never there, or no longer among the newest.
        raise unknown from None
    except (OSError, EOFError, zlib.error) as error:
        log.warning("the trace %s cannot be read: %r", identity, error)
        message = f"the file of trace '{identity}' is damaged: profile another request, and remove it"
        raise NotFound(message, type="trace_damaged", param="identity") from None
    return Response(found, media_type="application/json")
