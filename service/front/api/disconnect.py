"""Work for a client that may go away: then it is cancelled, as its answer has no reader."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from service.front.errors import ClientGone

Answer = TypeVar("Answer")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Answer]) -> Answer:
    """What `work` returns or raises. Raises ClientGone, and has cancelled it, once the client closes."""
    running = asyncio.create_task(work)
    gone = asyncio.create_task(_until_disconnect(receive))
    try:
        await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientGone("the client closed the connection")
        return running.result()
    finally:
        gone.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
