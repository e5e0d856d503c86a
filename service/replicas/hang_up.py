"""A client that hangs up, as Serve tells of it and as an app is to learn of it."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


async def ended_well(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Run `app`; where this call is cancelled, it is told `http.disconnect`, and awaited.

    Serve cancels the call of a client that has gone. The app would be cut off before it has counted the
    request and told the engine; by the message it ends as with any server.
    """
    gone = asyncio.Event()

    async def receive_or_gone() -> Message:
        message = asyncio.ensure_future(receive())
        hung_up = asyncio.ensure_future(gone.wait())
        try:
            await asyncio.wait({message, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            return {"type": "http.disconnect"} if gone.is_set() else await message
        finally:
            message.cancel()
            hung_up.cancel()

    running = asyncio.ensure_future(_run(app, scope, receive_or_gone, send))
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # looked at: there is nobody left to tell
        raise


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
