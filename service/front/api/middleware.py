"""What every request passes before its route: request id, sweep tracking, and the API key of `/v1`."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Annotated
from uuid import uuid4

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.front.errors import Unauthorised
from service.front.settings import Settings
from service.front.sweep_tracker import SweepTracker

REQUEST_ID_HEADER = "X-Request-ID"
SWEEP_HEADER = b"x-launchbound-run"
WELL_FORMED = re.compile(r"[A-Za-z0-9._-]{1,128}")

_bearer = HTTPBearer(auto_error=False, description="`LAUNCHBOUND_API_KEY`, where one is set.")


class RequestIdMiddleware:
    """Sets `request.state.request_id` and returns it in a header of every answer.

    A malformed or overlong `X-Request-ID` is replaced: ids go into logs and file names.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request with its id in the scope's state."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        request_id = given if WELL_FORMED.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class SweepTrackingMiddleware:
    """Reports the requests of a sweep, from arrival to the end of the answer, so that no study disturbs it.

    ASGI middleware, not a dependency: a dependency that sees the end of an answer costs 60 µs per request.
    """

    def __init__(self, app: ASGIApp, settings: Settings, sweeps: SweepTracker) -> None:
        self._app = app
        self._settings = settings
        self._sweeps = sweeps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if not self._is_of_a_sweep(scope):
            await self._app(scope, receive, send)
            return
        with self._sweeps.request():
            await self._app(scope, receive, send)

    def _is_of_a_sweep(self, scope: Scope) -> bool:
        """Whether this is a request of a sweep; without the key it does not count and blocks no study."""
        if scope["type"] != "http" or all(name != SWEEP_HEADER for name, _ in scope["headers"]):
            return False
        scheme, _, given = Headers(scope=scope).get("Authorization", "").partition(" ")
        return _key_fits(self._settings, given if scheme.lower() == "bearer" else None)


def require_key(settings: Settings) -> Callable[..., Awaitable[None]]:
    """A dependency that raises Unauthorised unless the request carries the API key, where one is set."""

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> None:
        if _key_fits(settings, given.credentials if given else None):
            return
        if given is None:
            raise Unauthorised("this service needs an API key: send 'Authorization: Bearer <key>'")
        raise Unauthorised("the API key is wrong")

    return check


def _key_fits(settings: Settings, given: str | None) -> bool:
    """Whether no key is set, or `given` is it; compared in constant time."""
    key = settings.api_key
    if key is None:
        return True
    return given is not None and hmac.compare_digest(given.encode(), key.get_secret_value().encode())
