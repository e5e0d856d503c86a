"""`X-Request-ID`: taken where it is well-formed, else made; in every answer, and the id of the job."""

from __future__ import annotations

import re
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-ID"
WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")
KEY = "launchbound.request_id"


class RequestId:
    """ASGI middleware. A malformed or overlong id is replaced: ids go into logs and file names."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on with its id in the scope."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = scope[KEY] = given if WELL_FORMED.fullmatch(given) else uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


def id_of(scope: Scope) -> str:
    """The id of this request."""
    request_id: str = scope[KEY]
    return request_id
