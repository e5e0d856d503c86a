"""A request to the engine to take its floors anew: sent once, however many wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.front.errors import LaunchboundError
from service.protocol.messages import Calibrate, Calibrated, FloorSamples, ToEngine


class FloorRequest:
    """At most one at a time; who asks meanwhile gets the same answer."""

    def __init__(self, post: Callable[[ToEngine], None]) -> None:
        self._post = post
        self._id = 0
        self._answer: asyncio.Future[list[FloorSamples]] | None = None

    async def take(self) -> list[FloorSamples]:
        """The floors. Raises the LaunchboundError that ended the wait, such as EngineLost."""
        if self._answer is None or self._answer.done():
            self._id += 1
            self._answer = asyncio.get_running_loop().create_future()
            self._post(Calibrate(id=self._id))
        return await asyncio.shield(self._answer)

    def answered(self, answer: Calibrated) -> None:
        """The engine has taken its floors."""
        if self._answer is not None and not self._answer.done() and answer.id == self._id:
            self._answer.set_result(answer.floors)

    def break_off(self, error: LaunchboundError) -> None:
        """The engine ended before it answered."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # retrieved here, or a client that has gone would leave a warning
