"""A request's body, sent to the replica with the request: Serve has the replica call back for it otherwise.

Serve's proxy takes its middlewares from a function that Ray's environment names. A proxy without this one, as
in a cluster that somebody else started, is called back.
"""

from __future__ import annotations

import asyncio

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY = "launchbound.body"
"""The scope's key for a body that is complete."""

PATIENCE_SECONDS = 0.1
"""What comes later than this is left to the replica, which has a deadline for bodies, and answers 408."""


class BodyAhead:
    """In Serve's proxy: the body goes along in the scope where its first message is all of it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] == "http":
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    first = await receive()
            except TimeoutError:
                return await self._app(scope, receive, send)
            if first["type"] == "http.request" and not first.get("more_body", False):
                scope[BODY] = first.get("body", b"")
            else:
                receive = preceded(first, receive)
        await self._app(scope, receive, send)


def preceded(first: Message, receive: Receive) -> Receive:
    """`receive` whose first message is `first`."""
    messages = [first]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message


def with_body(scope: Scope, receive: Receive) -> Receive:
    """`receive` as an app expects it, in the replica: begins with the body where that came along."""
    body = scope.pop(BODY, None)
    if body is None:
        return receive
    return preceded({"type": "http.request", "body": body, "more_body": False}, receive)


def middlewares() -> list[Middleware]:
    """What Serve's proxy is to wrap its app in."""
    return [Middleware(BodyAhead)]
