"""`GET /`, `GET /lab/{view}`: the lab, made of files that lie here; `GET /lab/files/…`: one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.front.errors import NotFound

FOLDER = Path(__file__).parents[1] / "lab"
FIRST_VIEW = "play"
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
"""What is served of the folder, by the end of its name: licences and notes are not."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Scripts and styles of this service alone, and none within the page."""


@dataclass(frozen=True, slots=True)
class LabFile:
    """One file, as it was when the service started."""

    content: bytes
    media_type: str
    etag: str

    def answer(self, request: Request) -> Response:
        """The file, or 304 where the browser has it: it may keep the file, and checks it at each use."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache"}
        headers |= {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer"}
        known = request.headers.get("if-none-match", "").split(",")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known):
            return Response(status_code=304, headers=headers)
        return Response(self.content, headers=headers, media_type=self.media_type)


def read_files(folder: Path) -> dict[str, LabFile]:
    """The files of the lab by their path within `folder`."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in TYPES)
    return {path.relative_to(folder).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> LabFile:
    content = path.read_bytes()
    return LabFile(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')


FILES: Mapping[str, LabFile] = read_files(FOLDER)
VIEWS = tuple(Path(path).stem for path in FILES if path.startswith("views/"))

router = APIRouter(include_in_schema=False)


@router.get("/")
async def first_view(request: Request) -> Response:
    """The lab, at its first view."""
    return FILES["index.html"].answer(request)


@router.get("/lab/files/{path:path}")
async def file(path: str, request: Request) -> Response:
    """A file of the lab."""
    if path not in FILES:
        raise NotFound(f"no file '{path[:64]}' of the lab here; / is the lab", param="path")
    return FILES[path].answer(request)


@router.get("/lab/{view}")
async def view(view: str, request: Request) -> Response:
    """The lab, at one of its views."""
    if view not in VIEWS:
        raise NotFound(f"no view '{view[:64]}' in the lab; try one of {', '.join(VIEWS)}", param="view")
    return FILES["index.html"].answer(request)
