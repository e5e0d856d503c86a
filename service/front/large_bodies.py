"""How many large bodies may be on their way at a time, and be decoded in one pass of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from service.front.errors import QueueFull

LARGE_BYTES = 65_536
"""A body up to this size fits in what the server reads ahead of a connection before the route begins."""

LEAST_PLACES = 16
"""Also where the queue is shorter: who waits for its place in it sends meanwhile."""


class LargeBodies:
    """As many bodies are read at a time as `max_queue` requests may be accepted, but some at least.

    Together they hold at most `places` times `max_body_bytes`. They are decoded one by one: each takes up to
    milliseconds, and those that are complete at the same moment would hold the loop for the sum of theirs.
    """

    def __init__(self, max_queue: int) -> None:
        self.places = max(LEAST_PLACES, max_queue)
        self._reading = 0
        self._turn = asyncio.Lock()

    async def turn(self) -> None:
        """Wait for a pass of the event loop in which no other large body is decoded; this one has it."""
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._turn.release)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Within: one of the places is taken. Raises QueueFull, before a byte is read, where none is left."""
        if self._reading >= self.places:
            raise QueueFull(
                f"{self.places} bodies of more than {LARGE_BYTES} bytes are being received; try again, or"
                " send shorter prompts",
                retry_after_seconds=1,
            )
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
