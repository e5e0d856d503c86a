"""What every request passes before its route: its id, who may call, and the API key of `/v1`.

The routes that generate are entered from here directly.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.front.api.origins import OPEN, Origins
from service.front.errors import LaunchboundError, Unauthorised
from service.front.settings import Settings

REQUEST_ID_HEADER = "X-Request-ID"
_REQUEST_ID = REQUEST_ID_HEADER.lower().encode()
_OF_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")

Refuse = Callable[[Request, LaunchboundError], Response]
"""Makes the answer of an error."""

_bearer = HTTPBearer(auto_error=False, description="`LAUNCHBOUND_API_KEY`, where one is set.")


class EntryMiddleware:
    """Sets `request.state.request_id`, returns it in a header, and refuses who may not call.

    A malformed or overlong `X-Request-ID` is replaced: ids go into logs and file names. What a program sends
    to a name of this service passes by a look at its headers; anything else is for `Origins` to judge.
    HEAD is answered as GET is, without the body: no GET runs anything.
    """

    def __init__(self, app: ASGIApp, origins: Origins, refuse: Refuse) -> None:
        self._app = app
        self._origins = origins
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request with its id in the scope's state."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, plain = self._look(scope)
        request_id = given if given is not None and WELL_FORMED.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        header = (_REQUEST_ID, request_id.encode("latin-1"))
        if head := scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            elif head:
                message["body"] = b""
            await send(message)

        if plain:
            await self._app(scope, receive, send_with_id)
        else:
            await self._judge(scope, receive, send_with_id)

    def _look(self, scope: Scope) -> tuple[str | None, bool]:
        """The given id, and whether no header gives cause for more than a look."""
        given, own, json, browser = None, False, scope["method"] != "POST", False
        named = False
        for name, value in scope["headers"]:
            if name == _REQUEST_ID:
                given = str(value, "latin-1")
            elif name == b"host":
                own = not named and (value.rpartition(b":")[0] or value) in self._origins.names
                named = True
            elif name == b"content-type":
                json = json or value == b"application/json"
            elif name in _OF_BROWSERS:
                browser = True
        return given, own and json and not browser

    async def _judge(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = None
        if scope["path"] not in OPEN:
            refusal = self._origins.refusal(scope["method"], scope["path"], scope["headers"])
        app = self._app if refusal is None else self._refuse(Request(scope), refusal)
        await app(scope, receive, send)


def require_key(settings: Settings) -> Callable[..., Awaitable[None]]:
    """A dependency that raises Unauthorised unless the request carries the API key, where one is set."""

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> None:
        _check_key(settings, given.credentials if given else None)

    return check


def _check_key(settings: Settings, given: str | None) -> None:
    """Raise Unauthorised unless no key is set, or `given` is it."""
    if _key_fits(settings, given):
        return
    if given is None:
        raise Unauthorised("this service needs an API key: send 'Authorization: Bearer <key>'")
    raise Unauthorised("the API key is wrong")


def has_key(settings: Settings, scope: Scope) -> bool:
    """Whether no key is set, or the request carries it."""
    return settings.api_key is None or _key_fits(settings, _bearer_of(scope))


def _key_fits(settings: Settings, given: str | None) -> bool:
    """Whether no key is set, or `given` is it; compared in constant time."""
    key = settings.api_key
    if key is None:
        return True
    return given is not None and hmac.compare_digest(given.encode(), key.get_secret_value().encode())


def _header(scope: Scope, name: bytes) -> str | None:
    """The first header of this lower-case name; None where there is none."""
    for found, value in scope["headers"]:
        if found == name:
            return str(value, "latin-1")
    return None


def _bearer_of(scope: Scope) -> str | None:
    """The bearer token; None where there is none."""
    scheme, _, given = (_header(scope, b"authorization") or "").partition(" ")
    return given.strip() or None if scheme.lower() == "bearer" else None


@dataclass(frozen=True, slots=True)
class DirectRoute:
    """A POST route of `/v1`: `endpoint` gets the request, and the named groups of `path` as keywords."""

    path: re.Pattern[str]
    endpoint: Callable[..., Awaitable[Response]]


class DirectRoutesMiddleware:
    """Enters the routes that generate without the framework's router, dependencies and exit stacks.

    These took a third of what a request cost beside its model call. The routes are declared to the framework
    all the same, which describes them in the OpenAPI document and answers every other method.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        routes: Sequence[DirectRoute],
        refuse: Refuse,
    ) -> None:
        self._app = app
        self._settings = settings
        self._routes = routes
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] == "http" and scope["method"] == "POST":
            for route in self._routes:
                if match := route.path.fullmatch(scope["path"]):
                    scope["path_params"] = match.groupdict()
                    await self._run(route, Request(scope, receive), send)
                    return
        await self._app(scope, receive, send)

    async def _run(self, route: DirectRoute, request: Request, send: Send) -> None:
        try:
            if self._settings.api_key is not None:
                _check_key(self._settings, _bearer_of(request.scope))
            response = await route.endpoint(request=request, **request.path_params)
            await response(request.scope, request.receive, send)
        except LaunchboundError as error:
            # Raised before the answer has begun: a stream sends later ones as events.
            await self._refuse(request, error)(request.scope, request.receive, send)
