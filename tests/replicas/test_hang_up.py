"""An app whose call is cancelled is told that the client has gone, and ends by itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.replicas.hang_up import ended_well


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


async def unsent(message: Message) -> None:
    """Goes nowhere."""


def test_a_cancelled_call_ends_as_after_a_disconnect() -> None:
    seen = list[Any]()

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        seen.append("began")
        seen.append((await receive())["type"])
        await asyncio.sleep(0)
        seen.append("ended")

    async def run() -> None:
        call = asyncio.ensure_future(ended_well(app, {"type": "http"}, never, unsent))
        while not seen:
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(run())
    assert seen == ["began", "http.disconnect", "ended"]


def test_messages_pass_and_so_does_what_the_app_raises() -> None:
    async def body() -> Message:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["body"] == b"x"
        raise RuntimeError("as the app raised it")

    with pytest.raises(RuntimeError, match="as the app raised it"):
        asyncio.run(ended_well(app, {"type": "http"}, body, unsent))
