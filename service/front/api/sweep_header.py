"""Notes the requests of a sweep, from arrival to the end of the answer, so that no study disturbs it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from service.front.api.keys import key_fits
from service.front.api.state import AppState

HEADER = b"x-launchbound-run"


class SweepHeader:
    """ASGI middleware, not a dependency: one that sees the end of an answer costs every request 60 µs."""

    def __init__(self, app: ASGIApp, state: AppState) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the call on."""
        if not self._of_a_run(scope):
            await self._app(scope, receive, send)
            return
        with self._state.studies.sweeps.request():
            await self._app(scope, receive, send)

    def _of_a_run(self, scope: Scope) -> bool:
        """Whether this is a request of a run; one without the key keeps nobody from a study."""
        if scope["type"] != "http" or all(name != HEADER for name, _ in scope["headers"]):
            return False
        scheme, _, given = Headers(scope=scope).get("Authorization", "").partition(" ")
        return key_fits(self._state.settings, given if scheme.lower() == "bearer" else None)
